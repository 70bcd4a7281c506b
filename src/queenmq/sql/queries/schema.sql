-- name: bootstrap
-- The schema itself and the record of what was applied to it. Number -1 is the procedures. Servers of version 1 recorded theirs
-- under 0; that row stays as they left it, so that those which still run go on finding what they ship.
create schema if not exists queen;
create table if not exists queen.schema_migrations (
    number     integer primary key,
    name       text not null,
    checksum   text not null,
    applied_at timestamptz not null default clock_timestamp()
);
alter table queen.schema_migrations
    add column if not exists version integer, add column if not exists requires integer, add column if not exists steps_done integer;
comment on column queen.schema_migrations.version is 'the version of the server that applied it; NULL = 1';
comment on column queen.schema_migrations.requires is 'servers below this version cannot work with it; NULL = all can';
comment on column queen.schema_migrations.steps_done is 'of an online migration that is under way; NULL = applied as a whole';

-- name: has_migrations_table
select to_regclass('queen.schema_migrations') is not null;

-- name: recorded_migrations
-- The later columns by way of jsonb: a table of version 1 does not have them.
select m.number, m.name, m.checksum, m.applied_at, coalesce((j.r ->> 'version')::integer, 1) as version,
       (j.r ->> 'requires')::integer as requires, (j.r ->> 'steps_done')::integer as steps_done
from queen.schema_migrations m cross join lateral (select to_jsonb(m) as r) j order by m.number;

-- name: record_migration
-- What is applied as a whole, or (steps_done not NULL) how far an online migration has come.
insert into queen.schema_migrations (number, name, checksum, version, requires, steps_done) values ($1, $2, $3, $4, $5, $6)
on conflict (number) do update set name = excluded.name, checksum = excluded.checksum, version = excluded.version,
    requires = excluded.requires, steps_done = excluded.steps_done, applied_at = clock_timestamp();

-- name: index_state
-- Whether an index is there: absent, valid, building (a session is at it) or broken (the session that built it ended).
select case when x.indexrelid is null then 'absent' when x.indisvalid then 'valid'
            when exists (select from pg_stat_progress_create_index b where b.index_relid = x.indexrelid) then 'building'
            else 'broken' end
from (select to_regclass($1::text) as oid) n left join pg_index x on x.indexrelid = n.oid;

-- name: drop_index
-- The statement that removes an index beside traffic.
select format('drop index concurrently if exists %s', to_regclass($1::text));

-- name: table_blocks
select pg_relation_size($1::text::regclass) / current_setting('block_size')::bigint;

-- name: partition_lookup_check
-- Rows of partition_lookup that do not agree with the stored messages, with names for people.
select coalesce(q.name, '?') as queue_name, coalesce(p.name, '?') as partition_name, c.problem
from queen.partition_lookup_check() c
left join queen.partitions p on p.partition_id = c.partition_id
left join queen.queues q on q.queue_id = p.queue_id
order by 1, 2;
