-- name: dataset_arguments
-- What the queries of this file read with current_setting: statements whose result is copied out as a stream take no parameters.
-- queues: a JSON array of names, or null for all; patterns: a JSON array of LIKE patterns beside them. partitions: a JSON array of
-- names, or null. since and until: a range of time, until not included. low and high: the part that one task reads, high not
-- included. payload: whether payloads are wanted. The queries below take arrays apart once, not for every row.
select set_config('queen.set_queues', $1, true), set_config('queen.set_namespace', $2, true), set_config('queen.set_task', $3, true),
       set_config('queen.set_partitions', $4, true), set_config('queen.set_since', $5, true), set_config('queen.set_until', $6, true),
       set_config('queen.set_low', $7, true), set_config('queen.set_high', $8, true), set_config('queen.set_payload', $9, true),
       set_config('queen.set_patterns', $10, true), set_config('jit', 'off', true);

-- name: dataset_metrics
-- Every number in a row of metrics, however deep, as a row of its own. Numbers that no double can hold, and lists, are left out.
select m.at, m.hostname, m.worker_id, m.scope, leaf.path as metric, (leaf.value #>> '{}')::double precision as value
from queen.metrics_history m
cross join lateral (
    with recursive tree (path, value) as (
        select e.key, e.value from jsonb_each(m.metrics) e
        union all
        select t.path || '.' || e.key, e.value
        from tree t cross join lateral jsonb_each(case jsonb_typeof(t.value) when 'object' then t.value else '{}' end) e
    )
    select t.path, t.value from tree t where jsonb_typeof(t.value) = 'number'
) leaf
where m.at >= current_setting('queen.set_low')::timestamptz and m.at < current_setting('queen.set_high')::timestamptz
    and jsonb_typeof(m.metrics) = 'object' and abs((leaf.value #>> '{}')::numeric) < 1e308
    and (current_setting('queen.set_queues') = 'null'
         or m.scope in (select jsonb_array_elements_text(current_setting('queen.set_queues')::jsonb))
         or m.scope like any (array(select jsonb_array_elements_text(current_setting('queen.set_patterns')::jsonb))));

-- name: dataset_metrics_extent
-- From the first row of the range to behind the last one.
select min(at) as low, max(at) + interval '1 us' as high
from queen.metrics_history where at >= $1::text::timestamptz and at < $2::text::timestamptz;

-- name: dataset_dead_letters
-- Ids are random, so equal parts of their range hold about equally many.
select q.name as queue, d.partition_name as partition, d.partition_uid::text as partition_id, d.consumer_group, d.seq,
       d.message_id::text as message_id, d.transaction_id, d.trace_id::text as trace_id, d.producer_sub,
       case when current_setting('queen.set_payload') = 'true' then convert_from(d.data, 'UTF8') end as payload,
       d.encrypted, d.error_message, d.retry_count, d.created_at, d.failed_at
from queen.dead_letter_queue d join queen.queues q using (queue_id)
where d.id >= current_setting('queen.set_low')::uuid
    and (current_setting('queen.set_high') = '' or d.id < nullif(current_setting('queen.set_high'), '')::uuid)
    and d.failed_at >= current_setting('queen.set_since')::timestamptz and d.failed_at < current_setting('queen.set_until')::timestamptz
    and (current_setting('queen.set_queues') = 'null'
         or q.name in (select jsonb_array_elements_text(current_setting('queen.set_queues')::jsonb))
         or q.name like any (array(select jsonb_array_elements_text(current_setting('queen.set_patterns')::jsonb))))
    and (current_setting('queen.set_namespace') = 'null' or q.namespace = current_setting('queen.set_namespace')::jsonb #>> '{}')
    and (current_setting('queen.set_task') = 'null' or q.task = current_setting('queen.set_task')::jsonb #>> '{}')
    and (current_setting('queen.set_partitions') = 'null'
         or d.partition_name in (select jsonb_array_elements_text(current_setting('queen.set_partitions')::jsonb)));

-- name: dataset_bytes
-- What a table takes on disk, without its indexes.
select pg_table_size($1::text::regclass);

-- name: dataset_lag
select c.consumer_group, c.queue, c.partition, c.partition_uid::text as partition_id, c.lag, c.oldest_unconsumed_at,
       c.lag_seconds, c.last_consumed_at, c.consumed
from queen.cursor_lag_v2(null, null) c join queen.queues q on q.queue_id = c.queue_id
where (current_setting('queen.set_queues') = 'null'
       or q.name in (select jsonb_array_elements_text(current_setting('queen.set_queues')::jsonb))
       or q.name like any (array(select jsonb_array_elements_text(current_setting('queen.set_patterns')::jsonb))))
    and (current_setting('queen.set_namespace') = 'null' or q.namespace = current_setting('queen.set_namespace')::jsonb #>> '{}')
    and (current_setting('queen.set_task') = 'null' or q.task = current_setting('queen.set_task')::jsonb #>> '{}')
    and (current_setting('queen.set_partitions') = 'null'
         or c.partition in (select jsonb_array_elements_text(current_setting('queen.set_partitions')::jsonb)));

-- name: dataset_partitions
-- messages and bytes are of the segments in the range of time; their positions are found without reading the others.
select q.name as queue, p.name as partition, p.uid::text as partition_id, l.last_seq, l.trimmed_seq,
       l.last_seq - l.trimmed_seq as stored, p.created_at, nullif(l.last_message_created_at, '-infinity') as last_message_created_at,
       coalesce(s.messages, 0) as messages, coalesce(s.bytes, 0) as bytes
from queen.partition_lookup l
join queen.queues q on q.queue_id = l.queue_id
join queen.partitions p on p.partition_id = l.partition_id
left join lateral (
    select sum(g.n)::bigint as messages, sum(octet_length(g.data))::bigint as bytes from queen.segments g
    where g.partition_id = l.partition_id
        and g.last_seq > queen.seq_at(l.partition_id, current_setting('queen.set_since')::timestamptz - interval '1 us')
        and g.last_seq <= queen.seq_at(l.partition_id, current_setting('queen.set_until')::timestamptz - interval '1 us')
) s on l.last_message_created_at >= current_setting('queen.set_since')::timestamptz
where l.partition_id >= current_setting('queen.set_low')::bigint and l.partition_id < current_setting('queen.set_high')::bigint
    and (current_setting('queen.set_queues') = 'null'
         or q.name in (select jsonb_array_elements_text(current_setting('queen.set_queues')::jsonb))
         or q.name like any (array(select jsonb_array_elements_text(current_setting('queen.set_patterns')::jsonb))))
    and (current_setting('queen.set_namespace') = 'null' or q.namespace = current_setting('queen.set_namespace')::jsonb #>> '{}')
    and (current_setting('queen.set_task') = 'null' or q.task = current_setting('queen.set_task')::jsonb #>> '{}')
    and (current_setting('queen.set_partitions') = 'null'
         or p.name in (select jsonb_array_elements_text(current_setting('queen.set_partitions')::jsonb)));

-- name: dataset_partitions_extent
-- Ranges of partition numbers of about equal work, at most as many as asked for. A partition costs something even when it is empty.
select min(partition_id) as low, max(partition_id) + 1 as high from (
    select l.partition_id, floor((sum(l.last_seq - l.trimmed_seq + 10) over (order by l.partition_id) - 1) * $1::bigint
                                 / sum(l.last_seq - l.trimmed_seq + 10) over ()) as part
    from queen.partition_lookup l) x
group by part order by part;
