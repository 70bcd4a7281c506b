-- What streaming reads from Spark need: positions that are kept outside of Spark's own offset files, which stay small however many
-- partitions there are.

-- Where a stream stood, written once before Spark hears of it, never changed. A row goes on from its parent; `positions` holds
-- either all partitions (whole) or those that moved since the parent, in the form of queenmq.spark.positions.
create table queen.read_positions (
    epoch       bigint generated always as identity primary key,
    lineage     bigint not null,
    parent      bigint,
    whole       boolean not null,
    positions   bytea not null,
    messages    bigint not null,
    captured_at timestamptz not null,
    snapshot    pg_snapshot not null,
    check (whole or parent is not null)
);
comment on column queen.read_positions.lineage is 'the first epoch of the stream';
comment on column queen.read_positions.messages is 'how many messages the stream has passed, over all partitions';
comment on column queen.read_positions.snapshot is 'what the stream could see when it chose these positions';
alter table queen.read_positions alter positions set storage external;
create index read_positions_lineage on queen.read_positions (lineage, epoch);
