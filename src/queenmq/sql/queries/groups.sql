-- name: list_groups
select g.name, q.name as queue, count(c.partition) as members, count(*) filter (where c.lag > 0) as lagging,
       coalesce(sum(c.lag), 0)::bigint as lag, coalesce(max(c.lag_seconds), 0) as lag_seconds, max(c.last_consumed_at) as last_consumed_at,
       g.subscription_mode, g.subscription_timestamp, g.created_at
from queen.consumer_groups_metadata g
join queen.queues q using (queue_id)
left join queen.cursor_lag_v2(null, null) c on c.group_id = g.group_id
where g.registered
group by g.group_id, q.name order by g.name, q.name;

-- name: cursor_lag
select * from queen.cursor_lag_v2($1, null) order by queue, partition;

-- name: lagging_cursors
select * from queen.cursor_lag_v2(null, null) where lag_seconds > $1 order by lag_seconds desc, consumer_group, queue, partition;

-- name: move_subscription
select queen.move_subscription_v1($1, $2);

-- name: seek
select queen.seek_v1($1, $2, $3, $4, $5);

-- name: delete_group
select queen.delete_group_v1($1, $2, $3);
