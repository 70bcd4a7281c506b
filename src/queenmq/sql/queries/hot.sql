-- name: find_partitions
select * from queen.find_partitions_v2($1, $2);

-- name: ensure_partitions
select * from queen.ensure_partitions_v2($1, $2);

-- name: push
select * from queen.push_v2($1::text::bigint[], $2::text::integer[], $3::text::uuid[], $4::text::uuid[], $5, $6, $7, $8, $9,
    $10::text::uuid[], $11::text::integer[], $12::text::bigint[], $13::text::integer[], $14::text::integer[],
    $15::text::integer[], $16::text::int4multirange[], $17::text::integer[]);

-- name: push_segment
select $1::bigint, queen.push_segment_v2($1, $2, $3, $4, $5, $6, $7, $8, $9, $10::text::uuid[], $11::text::integer[], $12, $13,
    $14::text::int4multirange[], $15::text::integer[]);

-- name: stored_keys
select * from queen.stored_keys_v2($1, $2);

-- name: register_group
select * from queen.register_group_v2($1, $2, $3, $4);

-- name: register_group_id
select group_id from queen.register_group_v2($1, $2, 'all', null);

-- name: await_subscriptions
select queen.await_subscriptions_v1($1, $2, $3, $4, $5, $6, $7);

-- name: existing_queues
select name from queen.queues where name = any ($1::text[]);

-- name: pop
select * from queen.pop_v2($1::text::bigint[], $2::text::integer[], $3::text::integer[], $4::text::integer[], $5::text::bigint[],
    $6::text::integer[], $7::text::integer[], $8::text::integer[], $9::text::uuid[], $10::text::integer[], $11::text::boolean[], $12,
    $13::text::double precision[], $14);

-- name: pop_any
-- Many pops of one group from any partition, one partition each: $2 leases, $3 batches, $4 how many, $5 bytes for each, $6 the group's tag,
-- $7 the most seconds that a lease lasts (NULL: as long as its queue says). Cursors are taken least recently served first, the first
-- for the first request. It serves queues whose options put no condition on a delivery, and cursors with nothing special about them; for the requests left over one row says whether the queue is served (n), how many
-- cursors were ready (partition_id), how many of them were taken (from_seq), and when the next one is ready.
with q as materialized (
    select u.queue_id, now() + make_interval(secs => least(case when u.lease_time = 0 then 60 else u.lease_time end, $7::integer)) as until
    from queen.consumer_groups_metadata m join queen.queues u using (queue_id)
    where m.group_id = $1::bigint and m.registered and (m.tag <> $6::integer) is not true
        and u.delayed_processing = 0 and u.window_buffer = 0 and coalesce(u.ttl, 0) = 0
), ready as materialized (
    select c.partition_id, c.acked_seq, c.ready_at,
           c.lease_id is null and c.start_from is null and c.retries is null and not c.isolate as plain
    from queen.partition_consumers c where c.group_id = $1 and c.ready_at <= now()
    order by c.ready_at limit $4::integer for update skip locked
), chosen as materialized (
    select r.place, r.partition_id, r.acked_seq, q.until, q.queue_id, u.seg_to, least(u.seg_to, e.target) as upto
    from (select *, row_number() over (order by ready_at) as place from ready) r cross join q
    join queen.partition_lookup l on l.partition_id = r.partition_id and l.last_seq > r.acked_seq
    cross join lateral (
        select z.last_seq, z.last_seq - z.n as below from queen.segments z
        where z.partition_id = r.partition_id and z.last_seq > r.acked_seq order by z.last_seq limit 1) s
    cross join lateral (select least(greatest(r.acked_seq, s.below) + ($3::text::integer[])[r.place], l.last_seq) as target) e
    cross join lateral (select case when s.last_seq >= e.target then s.last_seq
        else queen.last_segment(r.partition_id, s.last_seq, e.target, $5::bigint) end as seg_to) u
    where r.plain
), leased as (
    update queen.partition_consumers c
    set lease_id = ($2::text::uuid[])[x.place], lease_to = x.upto, lease_expires_at = x.until, ready_at = x.until
    from chosen x where c.partition_id = x.partition_id and c.group_id = $1
    returning x.place, c.partition_id, x.queue_id, x.acked_seq, x.upto, x.seg_to, x.until
)
select u.place::integer as request, u.partition_id, p.uid as partition_uid, p.name as partition_name, u.queue_id::bigint, $1::bigint as group_id,
       u.acked_seq as from_seq, u.upto as to_seq, u.until as lease_expires_at, 1 as attempt,
       s.last_seq, s.n, s.base, s.base_idx, s.created_at, s.tx, s.data, s.trace_ids, s.subs, s.enc, null::text as reason, null::timestamptz as ready_at
from leased u join queen.partitions p on p.partition_id = u.partition_id
cross join lateral (
    select z.* from queen.segments z where z.partition_id = u.partition_id and z.last_seq > u.acked_seq and z.last_seq <= u.seg_to
    order by z.last_seq) s
union all
select null, (select count(*) from ready), null, null, null, null, (select count(*) from leased), null, null, null,
       null, (select count(*) from q)::integer, null, null, clock_timestamp(), null, null, null, null, null, 'left over',
       (select c.ready_at from queen.partition_consumers c where c.group_id = $1 and c.ready_at is not null order by c.ready_at limit 1)
where (select count(*) from leased) < $4::integer;

-- name: held_by_auto_acks
-- Of these groups ($1; $2: on one partition, NULL: on any), those that a look may have found empty only because a pop with autoAck is being
-- acknowledged: its lease, recognised by the version of its id, is held or has just ended. The next cursors of a group say it.
select g.gid from unnest($1::bigint[]) g (gid) where exists (
    select from (
        select c.lease_id, c.last_lease_id, c.ready_at from queen.partition_consumers c
        where $2::bigint is null and c.group_id = g.gid and c.ready_at is not null order by c.ready_at limit 100) k
    where k.lease_id::text like '______________8%'
    or (k.lease_id is null and k.ready_at <= clock_timestamp() and k.last_lease_id::text like '______________8%')
    union all
    select from queen.partition_consumers c where c.partition_id = $2::bigint and c.group_id = g.gid
    and (c.lease_id::text like '______________8%'
        or (c.lease_id is null and c.ready_at <= clock_timestamp() and c.last_lease_id::text like '______________8%')));

-- name: clock
select clock_timestamp();

-- name: matching_queues
-- Queues of a namespace and task (NULL = any), most important first; among equals, the one whose group is ready longest.
select q.name, g.group_id::bigint
from queen.queues q
left join queen.consumer_groups_metadata g on g.queue_id = q.queue_id and g.name = $3 and g.registered and g.subscription_mode is not null
where ($1::text is null or q.namespace = $1) and ($2::text is null or q.task = $2)
order by q.priority desc,
    (select c.ready_at from queen.partition_consumers c
     where c.group_id = g.group_id and c.ready_at is not null order by c.ready_at limit 1) nulls first, q.name;

-- name: find_partition
select p.partition_id from queen.partitions p join queen.queues q using (queue_id) where q.name = $1 and p.name = $2;

-- name: resolve_acks
-- Where the messages of an ack stand: partition by its uid, group by name, message by seq or transactionId.
select a.ord::integer, p.partition_id, q.name as queue_name, p.name as partition_name, g.group_id::bigint,
       coalesce(a.seq, queen.locate(p.partition_id, a.transaction_id)) as seq
from unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[]) with ordinality a (uid, group_name, transaction_id, seq, ord)
join queen.partitions p on p.uid = a.uid
join queen.queues q on q.queue_id = p.queue_id
left join queen.consumer_groups_metadata g on g.queue_id = p.queue_id and g.name = a.group_name and g.registered
order by a.ord;

-- name: lease_holders
-- Which group holds each of these leases, on which partition.
select c.lease_id, p.uid, g.name
from queen.partition_consumers c
join queen.partitions p on p.partition_id = c.partition_id
join queen.consumer_groups_metadata g on g.group_id = c.group_id
where c.lease_id = any ($1::uuid[]) and c.lease_expires_at > clock_timestamp();

-- name: ack
select * from queen.ack_v2($1::text::bigint[], $2::text::bigint[], $3::text::uuid[], $4::text::bigint[], $5, $6);

-- name: ack_plain
-- The common ack: runs of only completed messages under live leases, all in one statement. A run that is not plain has
-- no row here, and is for ack_v2.
with k as materialized (
    -- The partition's row is read locked: only then does "nothing newer" mean drained.
    select a.run, a.pid, a.gid, a.upto, l.last_seq, c.lease_id = a.lease and c.lease_expires_at > clock_timestamp()
           and a.upto > c.acked_seq and a.upto <= c.lease_to as plain
    from unnest($1::text::bigint[], $2::text::bigint[], $3::text::uuid[], $4::text::bigint[]) with ordinality a (pid, gid, lease, upto, run)
    join queen.partition_lookup l on l.partition_id = a.pid
    join queen.partition_consumers c on c.partition_id = a.pid and c.group_id = a.gid
    order by a.pid, a.gid
    for share of l for update of c
)
update queen.partition_consumers c set
    acked_seq = k.upto,
    consumed = c.consumed + k.upto - c.acked_seq,
    last_consumed_at = now(),
    isolate = false,
    retries = case when c.retries is not null then queen.open_retries(c.retries, k.upto) end,
    batches = case when k.upto < c.lease_to then c.batches else c.batches + 1 end,
    last_lease_id = case when k.upto < c.lease_to then c.last_lease_id else c.lease_id end,
    last_lease_to = case when k.upto < c.lease_to then c.last_lease_to else k.upto end,
    lease_id = case when k.upto < c.lease_to then c.lease_id end,
    lease_to = case when k.upto < c.lease_to then c.lease_to end,
    lease_expires_at = case when k.upto < c.lease_to then c.lease_expires_at end,
    ready_at = case when k.upto < c.lease_to then c.ready_at when k.last_seq > k.upto then clock_timestamp() end
from k where k.plain and c.partition_id = k.pid and c.group_id = k.gid
returning k.run::integer, c.lease_id is null as released, c.lease_id is null and c.ready_at is not null as more;

-- name: renew
select * from queen.renew_v1($1, $2);

-- name: release
select * from queen.release_v2($1, $2);

-- name: transaction
select * from queen.transaction_v2($1, $2, $3, $4, $5, $6, $7::text::bigint[], $8::text::integer[], $9::text::uuid[], $10::text::uuid[],
    $11, $12, $13, $14, $15, $16::text::uuid[], $17::text::integer[], $18::text::bigint[], $19::text::integer[], $20::text::integer[],
    $21::text::integer[], $22::text::int4multirange[], $23::text::integer[]);

-- name: lease_among
-- Which of these leases holds a cursor, or held it last.
select coalesce(case when lease_id = any ($3) then lease_id end, case when last_lease_id = any ($3) then last_lease_id end)
from queen.partition_consumers where partition_id = $1 and group_id = $2::bigint;

-- name: leased_ranges
-- What these leases hold: the partition, the group, and the transactionIds of the leased messages, segment by segment.
select c.lease_id, c.partition_id, c.group_id::bigint, c.acked_seq, c.lease_to, p.uid, p.name as partition_name, q.name as queue_name,
       g.name as group_name, s.last_seq, s.n, s.base, s.base_idx, s.tx
from queen.partition_consumers c
join queen.partitions p on p.partition_id = c.partition_id
join queen.queues q on q.queue_id = p.queue_id
join queen.consumer_groups_metadata g on g.group_id = c.group_id
join queen.segments s on s.partition_id = c.partition_id and s.last_seq > c.acked_seq and s.last_seq <= (
    select z.last_seq from queen.segments z where z.partition_id = c.partition_id and z.last_seq >= c.lease_to order by z.last_seq limit 1)
where c.lease_id = any ($1::uuid[])
order by c.lease_id, c.partition_id, s.last_seq;
