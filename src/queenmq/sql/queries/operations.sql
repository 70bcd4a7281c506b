-- name: enqueue_operations
select * from queen.enqueue_operations_v1($1, $2, $3, $4, $5, $6, $7, $8) order by ord;

-- name: pending_lanes
-- Which of these (queue, partition) have operations that are not finished.
select l.ord::integer from unnest($1::text[], $2::text[]) with ordinality l (queue_name, partition_name, ord)
where exists (
    select from queen.operation_queue o
    where o.queue_name = l.queue_name and coalesce(o.partition_name, '') = coalesce(l.partition_name, '')
    and o.status in ('pending', 'processing'));

-- name: claim_operations
select * from queen.claim_operations_v1($1, $2) order by priority, id;

-- name: finish_operation
select queen.finish_operation_v1($1, $2, $3, $4, $5, $6);

-- name: reclaim_operations
select * from queen.reclaim_operations_v1($1);

-- name: promote_operations
-- A lane whose first operation was deleted by hand has nobody to hand it on: make the one that is first now claimable.
update queen.operation_queue o set not_before = '-infinity'
from (
    select distinct on (queue_name, coalesce(partition_name, '')) id from queen.operation_queue
    where status in ('pending', 'processing') order by queue_name, coalesce(partition_name, ''), id
) first
where o.id = first.id and o.status = 'pending' and o.not_before = 'infinity';

-- name: get_operation
select * from queen.operation_queue where id = $1;

-- name: operation_stats
-- Finished ones count for as long as they are kept.
select operation_type, status, count(*) as count, extract(epoch from clock_timestamp() - min(created_at))::float8 as oldest_seconds,
       coalesce(sum(estimated_size), 0)::bigint as bytes
from queen.operation_queue group by operation_type, status order by operation_type, status;

-- name: forget_operations
-- Failed ones are kept longer: they may be the only copy of what a client was told is accepted.
delete from queen.operation_queue where id in (
    select id from queen.operation_queue
    where status in ('completed', 'failed')
        and processed_at < clock_timestamp() - make_interval(secs => case when status = 'failed' then $2::float8 else $1::float8 end)
    order by processed_at limit $3);
