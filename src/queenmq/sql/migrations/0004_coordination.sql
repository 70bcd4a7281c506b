-- What servers that tell each other things need from the database: a check against wrong partition numbers, and sessions
-- that only rise.

-- No backfill: rows that are there stay unchecked, and nothing is rewritten while traffic waits.
alter table queen.partition_lookup add column tag integer;
comment on column queen.partition_lookup.tag is
    'a hash of the names of queue and partition: a push or pop whose caller has the wrong number for a name is refused; NULL (a row made before) = not checked';

-- The last session of each server: one that restarts begins a higher one, whatever its clock says.
create table queen.servers (
    server_id  text primary key check (char_length(server_id) between 1 and 31),
    session    bigint not null,
    started_at timestamptz not null default clock_timestamp()
);
