-- name: merge_rollup
-- A recomputation corrects what is there, metric by metric, but never replaces a value by one of fewer rows: retention may have
-- removed some of them meanwhile.
insert into queen.metrics_rollup as r (bucket, bucket_at, hostname, scope, metrics)
select * from unnest($1::text[], $2::timestamptz[], $3::text[], $4::text[], $5::jsonb[])
on conflict (bucket, bucket_at, hostname, scope) do update set computed_at = clock_timestamp(), metrics = (
    select jsonb_object_agg(key, case when coalesce((made.value ->> 'count')::bigint, -1) >= coalesce((found.value ->> 'count')::bigint, 0)
                                 then made.value else found.value end)
    from jsonb_each(r.metrics) found full join jsonb_each(excluded.metrics) made using (key));

-- name: rolled_pushes
-- Messages pushed in each bucket of [since, until), by the roll-ups of the whole cluster. NULL for a filter means any.
select r.bucket_at as at, sum((r.metrics -> 'pushMessages' ->> 'sum')::numeric)::bigint as messages
from queen.metrics_rollup r
where r.bucket = $1 and r.bucket_at >= $2 and r.bucket_at < $3 and r.hostname = '' and r.scope <> ''
    and ($4::text is null or r.scope = $4)
    and (($5::text is null and $6::text is null) or exists (
        select from queen.queues q where q.name = r.scope and ($5::text is null or q.namespace = $5) and ($6::text is null or q.task = $6)))
    and r.metrics -> 'pushMessages' ->> 'sum' is not null
group by 1;

-- name: first_rolled_push
-- The first bucket of [since, until) for which somebody measured pushes.
select r.bucket_at from queen.metrics_rollup r
where r.bucket = $1 and r.bucket_at >= $2 and r.bucket_at < $3 and r.hostname = '' and r.scope <> '' and r.metrics ? 'pushMessages'
order by r.bucket_at limit 1;

-- name: stored_pushes
-- The same from the messages that are still stored. Time has no index, but the messages of a partition are in its order: where a
-- bucket ends is found by bisection. A partition with few messages in the range is read instead. Messages deleted one by one count.
with part as materialized (
    select l.partition_id, greatest(queen.seq_at(l.partition_id, $2::timestamptz - interval '1 us'), f.below) as lo,
           queen.seq_at(l.partition_id, $3::timestamptz - interval '1 us') as hi
    from queen.queues q
    join queen.partition_lookup l on l.queue_id = q.queue_id
    cross join lateral (
        select s.last_seq - s.n as below, s.created_at from queen.segments s where s.partition_id = l.partition_id order by s.last_seq limit 1) f
    where ($4::text is null or q.name = $4) and ($5::text is null or q.namespace = $5) and ($6::text is null or q.task = $6)
        and l.last_message_created_at >= $2 and f.created_at < $3
), few as (
    select date_bin($1::interval, g.created_at, $2::timestamptz) as at, g.pushed
    from part p
    cross join lateral (
        select s.created_at, s.last_seq - lag(s.last_seq, 1, p.lo) over (order by s.last_seq) as pushed from queen.segments s
        where s.partition_id = p.partition_id and s.last_seq > p.lo and s.last_seq <= p.hi) g
    where p.hi > p.lo and p.hi - p.lo <= 1000
), many as (
    select e.at, greatest(queen.seq_at(p.partition_id, e.at + $1::interval - interval '1 us'), p.lo)
                 - greatest(queen.seq_at(p.partition_id, e.at - interval '1 us'), p.lo) as pushed
    from part p cross join generate_series($2::timestamptz, $3::timestamptz - interval '1 us', $1::interval) e (at)
    where p.hi - p.lo > 1000
)
select at, sum(pushed)::bigint as messages from (select * from few union all select * from many) x group by at having sum(pushed) > 0;

-- name: rolled_lag
-- How long messages waited for consumers at most, by the hour and queue, as roll-ups of the whole cluster have it.
select r.bucket_at as at, r.scope as queue, (r.metrics -> 'maxLagMs' ->> 'max')::double precision / 1000 as seconds
from queen.metrics_rollup r
where r.bucket = 'hour' and r.bucket_at >= $1 and r.hostname = '' and r.scope <> '' and r.metrics -> 'maxLagMs' ->> 'max' is not null
order by r.bucket_at desc limit $2;
