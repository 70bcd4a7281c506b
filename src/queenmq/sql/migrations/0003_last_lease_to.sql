-- How far the lease that ended last had settled. Its acks may be repeated up to there; what lies behind was settled by
-- others, and whoever acknowledges it late must hear that it no longer held the lease.

alter table queen.partition_consumers add column last_lease_to bigint;
comment on column queen.partition_consumers.last_lease_to is 'how far last_lease_id had settled when it ended';
update queen.partition_consumers set last_lease_to = acked_seq where last_lease_id is not null;
