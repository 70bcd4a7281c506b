-- name: spark_begin_reads
set transaction isolation level repeatable read, read only;

-- name: spark_begin_writes
set transaction isolation level read committed, read write;

-- name: spark_prepare_reads
-- The plan of this transaction's reads, as settings: statements whose result is copied out as a stream take no parameters. Nested
-- loops only: they return ranges in the order given, and never keep a result to sort or hash it.
select set_config('queen.read_pids', $1, true), set_config('queen.read_los', $2, true), set_config('queen.read_his', $3, true),
       set_config('queen.read_columns', $4, true), set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
       set_config('enable_material', 'off', true), set_config('enable_memoize', 'off', true), set_config('join_collapse_limit', '1', true), set_config('jit', 'off', true),
       set_config('max_parallel_workers_per_gather', '0', true);

-- name: spark_lost_ranges
-- Ranges of which retention has removed something, or whose partition is gone.
select r.pid, r.lo, r.hi, l.trimmed_seq, coalesce(q.name, d.queue_name) as queue, coalesce(p.name, d.partition_name) as partition
from unnest(current_setting('queen.read_pids')::bigint[], current_setting('queen.read_los')::bigint[],
            current_setting('queen.read_his')::bigint[]) r (pid, lo, hi)
left join queen.partition_lookup l on l.partition_id = r.pid
left join queen.partitions p on p.partition_id = r.pid
left join queen.queues q on q.queue_id = p.queue_id
left join queen.removed_partitions d on d.partition_id = r.pid
where l.partition_id is null or l.trimmed_seq > r.lo;

-- name: spark_segments
-- The segments of each range (lo, hi], in order, with what was asked for. A segment holds at most 65,536 messages: that bounds
-- the scan of the index, and the ends of a range may lie inside of one.
select q.name as queue, p.name as partition, p.uid::text as partition_id, r.lo, r.hi,
       s.last_seq, s.n, s.base_idx, s.created_at, s.base::text as base,
       case when strpos(current_setting('queen.read_columns'), 'x') > 0 then s.tx end as tx,
       case when strpos(current_setting('queen.read_columns'), 'd') > 0 then s.data end as data,
       case when strpos(current_setting('queen.read_columns'), 't') > 0 then s.trace_ids end as trace_ids,
       case when strpos(current_setting('queen.read_columns'), 's') > 0 then s.subs end as subs,
       case when strpos(current_setting('queen.read_columns'), 'e') > 0 then s.enc end as enc
from unnest(current_setting('queen.read_pids')::bigint[], current_setting('queen.read_los')::bigint[],
            current_setting('queen.read_his')::bigint[]) r (pid, lo, hi)
join queen.partitions p on p.partition_id = r.pid
join queen.queues q on q.queue_id = p.queue_id
cross join lateral (
    select g.* from queen.segments g
    where g.partition_id = r.pid and g.last_seq > r.lo and g.last_seq < r.hi + 65536 and g.last_seq - g.n < r.hi
    order by g.last_seq
) s;

-- name: spark_partitions
-- The partitions that a reader matches, and what each holds: the messages (trimmed_seq, last_seq].
-- $1: names of queues, $2: LIKE patterns of such names; the others are NULL where anything goes: $5 names and $6 ids of partitions,
-- $7 names of queues. The driver sends arrays as texts: each is taken apart once, not for every row.
select l.partition_id, l.trimmed_seq, l.last_seq
from queen.queues q
join queen.partitions p on p.queue_id = q.queue_id
join queen.partition_lookup l on l.partition_id = p.partition_id
where q.queue_id in (
        select c.queue_id from unnest($1::text[]) w (name) join queen.queues c on c.name = w.name
        union all
        select c.queue_id from unnest($2::text[]) w (pattern) join queen.queues c on c.name like w.pattern)
    and ($3::text is null or q.namespace = $3) and ($4::text is null or q.task = $4)
    and ($5::text is null or p.name in (select unnest($5::text::text[])))
    and ($6::text is null or p.uid in (select unnest($6::text::uuid[])))
    and ($7::text is null or q.name in (select unnest($7::text::text[])))
order by l.partition_id;

-- name: spark_seqs_at
-- For each partition the newest message created at or before a moment.
select queen.seq_at(r.pid, $2::timestamptz) as seq from unnest($1::bigint[]) with ordinality r (pid, o) order by r.o;

-- name: spark_numbers
-- The partitions of these names that exist.
select p.partition_id, r.o from unnest($1::text[], $2::text[]) with ordinality r (queue, partition, o)
join queen.queues q on q.name = r.queue join queen.partitions p on p.queue_id = q.queue_id and p.name = r.partition;

-- name: spark_unknown_queues
-- Those of these names that no queue has.
select r.name from unnest($1::text[]) with ordinality r (name, o)
where not exists (select from queen.queues q where q.name = r.name) order by r.o;
