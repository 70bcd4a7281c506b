-- name: insert_metrics
-- A row that is already there is replaced: a repeated call changes nothing.
insert into queen.metrics_history (at, hostname, worker_id, scope, metrics)
select * from unnest($1::timestamptz[], $2::text[], $3::text[], $4::text[], $5::jsonb[])
on conflict (at, hostname, worker_id, scope) do update set metrics = excluded.metrics;

-- name: upsert_rollup
insert into queen.metrics_rollup (bucket, bucket_at, hostname, scope, metrics)
select * from unnest($1::text[], $2::timestamptz[], $3::text[], $4::text[], $5::jsonb[])
on conflict (bucket, bucket_at, hostname, scope) do update set metrics = excluded.metrics, computed_at = clock_timestamp();

-- name: read_metrics
-- NULL for hostname or scope means any; until is not included.
select at, hostname, worker_id, scope, metrics from queen.metrics_history
where at >= $1 and at < $2 and ($3::text is null or hostname = $3) and ($4::text is null or scope = $4)
order by at, hostname, worker_id, scope limit $5;

-- name: read_rollup
select bucket_at as at, hostname, '' as worker_id, scope, metrics from queen.metrics_rollup
where bucket = $6 and bucket_at >= $1 and bucket_at < $2 and ($3::text is null or hostname = $3) and ($4::text is null or scope = $4)
order by bucket_at, hostname, scope limit $5;

-- name: forget_metrics
delete from queen.metrics_history m using (
    select at, hostname, worker_id, scope from queen.metrics_history
    where at < clock_timestamp() - make_interval(secs => $1) order by at limit $2
) old where (m.at, m.hostname, m.worker_id, m.scope) = (old.at, old.hostname, old.worker_id, old.scope);

-- name: forget_rollup
delete from queen.metrics_rollup m using (
    select bucket, bucket_at, hostname, scope from queen.metrics_rollup
    where bucket = $3 and bucket_at < clock_timestamp() - make_interval(secs => $1) order by bucket_at limit $2
) old where (m.bucket, m.bucket_at, m.hostname, m.scope) = (old.bucket, old.bucket_at, old.hostname, old.scope);
