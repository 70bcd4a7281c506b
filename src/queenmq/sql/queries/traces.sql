-- name: add_trace
-- No row when there is no such message.
with place as (
    select p.queue_id from queen.partitions p where p.uid = $2 and queen.locate(p.partition_id, $3) is not null
), trace as (
    insert into queen.message_traces (id, queue_id, partition_uid, transaction_id, consumer_group, event_type, data, worker_id)
    select $1, place.queue_id, $2, $3, $4, $5, convert_from($6, 'UTF8')::jsonb, $7 from place
    returning id
), names as (
    insert into queen.message_trace_names (trace_name, trace_id) select distinct n.name, trace.id from trace, unnest($8::text[]) n (name)
)
select id from trace;

-- name: traces_of_message
select t.id, t.event_type, t.data::text, t.consumer_group, t.worker_id, t.created_at,
       array(select n.trace_name from queen.message_trace_names n where n.trace_id = t.id order by n.trace_name) as names
from queen.message_traces t where t.partition_uid = $1 and t.transaction_id = $2 order by t.created_at, t.id;

-- name: traces_by_name
-- Oldest first, with their messages. Always at least one row, so that the total comes with an empty page too.
select (select count(*) from queen.message_trace_names n where n.trace_name = $1) as total,
       t.id, t.event_type, t.data::text, t.consumer_group, t.worker_id, t.created_at,
       array(select n.trace_name from queen.message_trace_names n where n.trace_id = t.id order by n.trace_name) as names,
       t.transaction_id, t.partition_uid, q.name as queue, p.name as partition, convert_to(m.payload, 'UTF8') as payload, m.encrypted
from (select 1) one
left join (
    select t.* from queen.message_trace_names n join queen.message_traces t on t.id = n.trace_id
    where n.trace_name = $1 order by t.created_at, t.id limit $2 offset $3) t on true
left join queen.queues q on q.queue_id = t.queue_id
left join queen.partitions p on p.uid = t.partition_uid
left join lateral queen.message_at(p.partition_id, queen.locate(p.partition_id, t.transaction_id)) m on true
order by t.created_at, t.id;

-- name: trace_names
-- Last seen first. Always at least one row, as above.
select (select count(distinct n.trace_name) from queen.message_trace_names n) as total, x.*
from (select 1) one
left join (
    select n.trace_name, count(*) as traces, count(distinct (t.partition_uid, t.transaction_id)) as messages, max(t.created_at) as last_seen
    from queen.message_trace_names n join queen.message_traces t on t.id = n.trace_id
    group by n.trace_name order by last_seen desc, n.trace_name limit $1 offset $2) x on true
order by x.last_seen desc, x.trace_name;
