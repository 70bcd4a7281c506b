-- name: find_partitions
select * from queen.find_partitions_v1($1, $2);

-- name: ensure_partitions
select * from queen.ensure_partitions_v1($1, $2);

-- name: push
select * from queen.push_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12);

-- name: stored_keys
select * from queen.stored_keys_v1($1, $2);

-- name: register_group
select * from queen.register_group_v1($1, $2, $3, $4);

-- name: register_group_id
select group_id from queen.register_group_v1($1, $2, 'all', null);

-- name: pop
select * from queen.pop_v1($1, $2, $3, $4, $5, $6, $7, $8, $9);

-- name: matching_queues
-- Queues of a namespace and task (NULL = any), most important first; among equals, the one whose group is ready longest.
select q.name, g.group_id
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
select a.ord::integer, p.partition_id, q.name as queue_name, p.name as partition_name, g.group_id,
       coalesce(a.seq, queen.locate(p.partition_id, a.transaction_id)) as seq
from unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[]) with ordinality a (uid, group_name, transaction_id, seq, ord)
join queen.partitions p on p.uid = a.uid
join queen.queues q on q.queue_id = p.queue_id
left join queen.consumer_groups_metadata g on g.queue_id = p.queue_id and g.name = a.group_name and g.registered
order by a.ord;

-- name: ack
select * from queen.ack_v1($1, $2, $3, $4, $5, $6);

-- name: renew
select * from queen.renew_v1($1, $2);

-- name: release
select queen.release_v1($1, $2);

-- name: transaction
select * from queen.transaction_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18);

-- name: lease_among
-- Which of these leases holds a cursor, or held it last.
select coalesce(case when lease_id = any ($3) then lease_id end, case when last_lease_id = any ($3) then last_lease_id end)
from queen.partition_consumers where partition_id = $1 and group_id = $2;

-- name: leased_ranges
-- What these leases hold: the partition, the group, and the transactionIds of the leased messages, segment by segment.
select c.lease_id, c.partition_id, c.group_id, c.acked_seq, c.lease_to, p.uid, p.name as partition_name, q.name as queue_name,
       g.name as group_name, s.last_seq, s.n, s.base, s.base_idx, s.tx
from queen.partition_consumers c
join queen.partitions p on p.partition_id = c.partition_id
join queen.queues q on q.queue_id = p.queue_id
join queen.consumer_groups_metadata g on g.group_id = c.group_id
join queen.segments s on s.partition_id = c.partition_id and s.last_seq > c.acked_seq and s.last_seq <= (
    select z.last_seq from queen.segments z where z.partition_id = c.partition_id and z.last_seq >= c.lease_to order by z.last_seq limit 1)
where c.lease_id = any ($1::uuid[])
order by c.lease_id, c.partition_id, s.last_seq;

-- name: queue_names
select queue_id, name from queen.queues where queue_id = any ($1);
