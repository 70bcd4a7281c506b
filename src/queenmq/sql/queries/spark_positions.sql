-- name: spark_snapshot
-- The moment at which a stream looks; the statements after it in this transaction see the same.
select clock_timestamp() as at, pg_current_snapshot()::text as snapshot;

-- name: spark_keep_positions
select queen.keep_positions_v1($1::bigint, $2::boolean, $3::bytea, $4::bigint, $5::text::timestamptz, $6::text::pg_snapshot) as epoch;

-- name: spark_positions
-- An epoch and those it goes on from, down to one that is whole, newest first.
with recursive chain as (
    select p.* from queen.read_positions p where p.epoch = $1
    union all
    select p.* from chain c join queen.read_positions p on p.epoch = c.parent where not c.whole
)
select epoch, whole, positions, messages, lineage from chain order by epoch desc;

-- name: spark_removed_partitions
-- The partitions that a reader matches ($1 to $5 as in spark_partitions) and that were removed since it chose the positions of
-- epoch $6: the last message that each had.
select r.partition_id, r.last_seq
from queen.read_positions e
join queen.removed_partitions r on r.removed_in >= pg_snapshot_xmin(e.snapshot) and not pg_visible_in_snapshot(r.removed_in, e.snapshot)
where e.epoch = $6
    and (r.queue_name in (select unnest($1::text::text[])) or r.queue_name like any (array(select unnest($2::text::text[]))))
    and ($3::text is null or r.namespace = $3) and ($4::text is null or r.task = $4)
    and ($5::text is null or r.partition_name in (select unnest($5::text::text[])))
order by r.partition_id;

-- name: spark_touch_positions
-- A stream that is at epoch $1 for good has looked for what it lost up to $2, or with NULL up to when it chose that epoch.
update queen.read_positions set seen_at = coalesce($2::text::timestamptz, captured_at) where epoch = $1;

-- name: spark_drop_first
-- Forget a first epoch from which nothing has gone on.
delete from queen.read_positions p where p.epoch = $1 and p.lineage = p.epoch
    and not exists (select from queen.read_positions c where c.lineage = p.epoch and c.epoch > p.epoch);

-- name: spark_forget_positions
select queen.forget_positions_v1($1::bigint, $2::integer);

-- name: spark_archived_to
select queue, archived_to from queen.archived_to_v1($1, $2, $3, $4);

-- name: spark_publish_progress
select queen.publish_progress_v1($1, $2, $3);

-- name: spark_unregistered
-- The queues of these partitions on which the group is not registered.
select distinct q.name from queen.partitions p join queen.queues q using (queue_id)
where p.partition_id = any ($2) and not exists (
    select from queen.consumer_groups_metadata m
    where m.queue_id = q.queue_id and m.name = $1 and m.registered and m.subscription_mode is not null)
order by q.name;

-- name: spark_group_consumers
-- Consumers of the group beside the stream, by queue: cursors that are leased, and those that were moved a short while ago to behind
-- where the stream has brought them ($3, for each partition of $2).
select q.name as queue,
       count(*) filter (where c.lease_expires_at > clock_timestamp()) as leased,
       count(*) filter (where c.start_from is null and c.acked_seq > x.seq and c.last_consumed_at > clock_timestamp() - interval '10 minutes') as moved
from unnest($2::bigint[], $3::bigint[]) x (pid, seq)
join queen.partition_consumers c on c.partition_id = x.pid
join queen.consumer_groups_metadata m on m.group_id = c.group_id and m.name = $1
join queen.queues q on q.queue_id = m.queue_id
where c.lease_expires_at > clock_timestamp() or c.acked_seq > x.seq
group by q.name order by q.name;

-- name: spark_average_sizes
-- About how many bytes of payload a message has, in each of these partitions from a message on: of the next few segments.
select r.o, coalesce(sum(s.bytes), 0)::bigint as bytes, coalesce(sum(s.n), 0)::bigint as messages
from unnest($1::bigint[], $2::bigint[]) with ordinality r (pid, lo, o)
cross join lateral (
    select octet_length(g.data) as bytes, g.n from queen.segments g
    where g.partition_id = r.pid and g.last_seq > r.lo order by g.last_seq limit 8
) s group by r.o order by r.o;
