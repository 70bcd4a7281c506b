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
select epoch, whole, positions, messages from chain order by epoch desc;

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

-- name: spark_average_sizes
-- About how many bytes of payload a message has, in each of these partitions from a message on: of the next few segments.
select r.o, coalesce(sum(s.bytes), 0)::bigint as bytes, coalesce(sum(s.n), 0)::bigint as messages
from unnest($1::bigint[], $2::bigint[]) with ordinality r (pid, lo, o)
cross join lateral (
    select octet_length(g.data) as bytes, g.n from queen.segments g
    where g.partition_id = r.pid and g.last_seq > r.lo order by g.last_seq limit 8
) s group by r.o order by r.o;
