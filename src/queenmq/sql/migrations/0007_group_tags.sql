-- Pops say for which queue and group they use a group's number, as they do for partitions: a number that is remembered from before a
-- failover to an asynchronous replica may belong to another group by now.

-- No backfill here: a group that is there gets its tag when a server registers it the next time.
alter table queen.consumer_groups_metadata add column tag integer;
comment on column queen.consumer_groups_metadata.tag is
    'a hash of the names of queue and group: a pop whose caller has the wrong number for them is refused; NULL (a row made before) = not checked';
