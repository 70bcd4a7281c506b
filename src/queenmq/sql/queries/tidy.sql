-- name: vacuum_cursors
vacuum (skip_locked, truncate off) queen.partition_consumers;

-- name: cursor_count
-- As of the last vacuum.
select greatest(reltuples, 0)::bigint from pg_class where oid = 'queen.partition_consumers'::regclass;
