-- What streaming reads must know about the past: which partitions were removed, and which streams are still in use.

-- A partition that is gone takes its numbers with it. This row says how far they went, so that a stream that was not there yet
-- can tell that it has lost something. `queen db sweep` removes the rows that no stream can need.
create table queen.removed_partitions (
    partition_id   bigint primary key,
    queue_name     text not null,
    namespace      text not null,
    task           text not null,
    partition_name text not null,
    last_seq       bigint not null,
    removed_at     timestamptz not null default clock_timestamp(),
    removed_in     xid8 not null default pg_current_xact_id()
);
comment on column queen.removed_partitions.removed_in is 'the transaction: a stream whose snapshot sees it has dealt with the removal';
create index removed_partitions_removed_in on queen.removed_partitions (removed_in);
create index removed_partitions_removed_at on queen.removed_partitions (removed_at);

alter table queen.read_positions add column seen_at timestamptz;
comment on column queen.read_positions.seen_at is 'up to when the stream, at this epoch, has looked for what it lost; NULL where that is not known';
