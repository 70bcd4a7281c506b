-- name: list_messages
select m.id, m.transaction_id, p.uid as partition_uid, q.name as queue, p.name as partition, q.namespace, q.task, x.seq, s.status,
       s.queue_status, s.consumed_by, s.total_groups, m.trace_id, m.producer_sub, q.priority, m.created_at, s.leased_until
from queen.list_messages_v1($1, $2, $3, $4, $5, $6, $7, $8, $9) with ordinality x (partition_id, seq, o)
join queen.partitions p on p.partition_id = x.partition_id
join queen.queues q on q.queue_id = p.queue_id
cross join lateral queen.message_at(x.partition_id, x.seq) m
cross join lateral queen.status_of(x.partition_id, x.seq) s
order by x.o;

-- name: groups_in_use
-- Whether queue mode is used on these queues, and how many named groups are.
select coalesce(bool_or(g.name = '__QUEUE_MODE__'), false) as queue_mode,
       count(distinct g.name) filter (where g.name <> '__QUEUE_MODE__') as named
from queen.consumer_groups_metadata g join queen.queues q using (queue_id)
where g.registered and ($1::text is null or q.name = $1) and ($2::text is null or q.namespace = $2) and ($3::text is null or q.task = $3);

-- name: get_message
-- A stored message or, when it is gone, the newest copy that a dead letter has of it.
select x.*, s.*, $1::uuid as partition_uid, q.name as queue, q.namespace, q.task, q.priority, q.lease_time, q.retry_limit, q.retry_delay, q.ttl,
       d.error_message, d.retry_count
from (
    (select p.queue_id, p.partition_id, p.name as partition, l.seq, true as stored, m.id, m.transaction_id, m.trace_id,
            m.producer_sub, convert_to(m.payload, 'UTF8') as payload, m.encrypted, m.created_at
     from queen.partitions p, lateral queen.locate(p.partition_id, $2) l (seq), lateral queen.message_at(p.partition_id, l.seq) m
     where p.uid = $1)
    union all
    (select d.queue_id, d.partition_id, d.partition_name, d.seq, false, d.message_id, d.transaction_id, d.trace_id,
            d.producer_sub, d.data, d.encrypted, d.created_at
     from queen.dead_letter_queue d where d.partition_uid = $1 and d.transaction_id = $2 order by d.failed_at desc limit 1)
) x
join queen.queues q on q.queue_id = x.queue_id
cross join lateral queen.status_of(x.partition_id, x.seq) s
left join lateral (
    select k.error_message, k.retry_count from queen.dead_letter_queue k
    where k.partition_id = x.partition_id and k.seq = x.seq order by k.failed_at desc limit 1) d on true
order by x.stored desc limit 1;

-- name: groups_of_message
select g.name, queen.position_of(c.partition_id, c.acked_seq, c.start_from) >= $2 as consumed,
       case when $2 > c.acked_seq and $2 <= c.lease_to and c.lease_expires_at > clock_timestamp() then c.lease_expires_at end as leased_until
from queen.partition_consumers c join queen.consumer_groups_metadata g using (group_id)
where c.partition_id = $1 order by g.name;

-- name: delete_message
select * from queen.delete_message_v1($1, $2);

-- name: dead_letter_message
select queen.dead_letter_message_v1($1, $2, $3, $4);

-- name: clear
select queen.clear_v1($1, $2);
