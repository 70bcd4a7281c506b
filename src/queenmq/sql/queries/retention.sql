-- name: trim
select * from queen.trim_v1($1, $2, $3);

-- name: remove_idle_partitions
select * from queen.remove_idle_partitions_v1($1, $2, $3, $4);

-- name: sweep_orphans
select * from queen.sweep_orphans_v1($1, $2);

-- name: sweep_dedup
select * from queen.sweep_dedup_v1($1);

-- name: forget_traces
delete from queen.message_traces where id in (
    select id from queen.message_traces where created_at < clock_timestamp() - make_interval(secs => $1)
    order by created_at limit $2);

-- name: forget_retention_history
delete from queen.retention_history where id in (
    select id from queen.retention_history where at < clock_timestamp() - make_interval(secs => $1) order by at limit $2);

-- name: forget_streams
select queen.forget_streams_v1($1, $2);

-- name: forget_removals
select queen.forget_removals_v1($1, $2);

-- name: forget_awaited
delete from queen.awaited_subscriptions where (group_name, topic) in (
    select a.group_name, a.topic from queen.awaited_subscriptions a where a.seen_at < clock_timestamp() - make_interval(secs => $1)
    order by a.seen_at limit $2 for update skip locked);

-- name: acquire_hold
select $1::text as queue, h.*, nullif(h.held_from, '-infinity') as released_to from queen.acquire_hold_v1($1, $2, $3, $4) h where h.queue_id is not null;

-- name: advance_hold
-- Never backwards, and never into the future: what is not created yet cannot be archived.
update queen.archive_holds h set
    held_from = greatest(h.held_from, least($3::timestamptz, clock_timestamp())), updated_at = clock_timestamp()
from queen.queues q where q.name = $1 and h.queue_id = q.queue_id and h.holder = $2
returning q.name as queue, h.*, nullif(h.held_from, '-infinity') as released_to;

-- name: release_hold
delete from queen.archive_holds h using queen.queues q
where q.name = $1 and h.queue_id = q.queue_id and h.holder = $2 returning h.holder;

-- name: list_holds
select q.name as queue, h.*, nullif(h.held_from, '-infinity') as released_to from queen.archive_holds h join queen.queues q using (queue_id)
where $1::text is null or q.name = $1 order by q.name, h.holder;

-- name: evict
select * from queen.evict_v1($1, $2, $3);

-- name: get_state
select value from queen.system_state where key = $1;

-- name: set_state
insert into queen.system_state (key, value) values ($1, $2)
on conflict (key) do update set value = excluded.value, updated_at = clock_timestamp();

-- name: swap_state
-- Set a value only where it is what the caller thinks it is; NULL = not there.
with changed as (
    update queen.system_state set value = $3, updated_at = clock_timestamp() where key = $1 and value = $2 returning 1
), made as (
    insert into queen.system_state (key, value) select $1, $3 where $2::jsonb is null on conflict (key) do nothing returning 1
)
select exists (select from changed) or exists (select from made);
