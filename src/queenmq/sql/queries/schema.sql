-- name: bootstrap
-- The schema itself and the record of what was applied to it. Number 0 is the procedures.
create schema if not exists queen;
create table if not exists queen.schema_migrations (
    number     integer primary key,
    name       text not null,
    checksum   text not null,
    applied_at timestamptz not null default clock_timestamp()
);

-- name: has_migrations_table
select to_regclass('queen.schema_migrations') is not null;

-- name: recorded_migrations
select number, name, checksum, applied_at from queen.schema_migrations order by number;

-- name: record_migration
insert into queen.schema_migrations (number, name, checksum) values ($1, $2, $3)
on conflict (number) do update set checksum = excluded.checksum, applied_at = clock_timestamp();

-- name: partition_lookup_check
-- Rows of partition_lookup that do not agree with the stored messages, with names for people.
select coalesce(q.name, '?') as queue_name, coalesce(p.name, '?') as partition_name, c.problem
from queen.partition_lookup_check() c
left join queen.partitions p on p.partition_id = c.partition_id
left join queen.queues q on q.queue_id = p.queue_id
order by 1, 2;
