-- name: list_dead_letters
-- Newest failure first. Always at least one row, so that the total comes with an empty page too.
with hit as (
    select d.id, d.failed_at from queen.dead_letter_queue d join queen.queues q using (queue_id)
    where ($1::text is null or q.name = $1) and ($2::text is null or d.consumer_group = $2)
        and ($3::text is null or d.partition_name = $3)
        and ($4::timestamptz is null or d.failed_at >= $4) and ($5::timestamptz is null or d.failed_at <= $5)
)
select (select count(*) from hit) as total, d.*, q.name as queue
from (select 1) one
left join (select * from hit order by failed_at desc, id desc limit $6 offset $7) page on true
left join queen.dead_letter_queue d on d.id = page.id
left join queen.queues q on q.queue_id = d.queue_id
order by page.failed_at desc, page.id desc;

-- name: find_dead_letters
-- By id, or those of one message (of one group, or of all), newest failure first.
select d.*, q.name as queue from queen.dead_letter_queue d join queen.queues q using (queue_id)
where case when $1::uuid is not null then d.id = $1
           else d.partition_uid = $2 and d.transaction_id = $3 and ($4::text is null or d.consumer_group = $4) end
order by d.failed_at desc, d.id desc;

-- name: delete_dead_letter
delete from queen.dead_letter_queue where id = $1;

-- name: delete_dead_letters_of_message
delete from queen.dead_letter_queue
where partition_uid = $1 and transaction_id = $2 and ($3::text is null or consumer_group = $3);

-- name: delete_dead_letters_of_queue
delete from queen.dead_letter_queue d using queen.queues q
where q.name = $1 and d.queue_id = q.queue_id and ($2::text is null or d.consumer_group = $2);

-- name: retry_dead_letters
select * from queen.retry_dead_letters_v1($1);

-- name: retry_dead_letters_of_message
select * from queen.retry_dead_letters_v1(array(
    select d.id from queen.dead_letter_queue d
    where d.partition_uid = $1 and d.transaction_id = $2 and ($3::text is null or d.consumer_group = $3)));

-- name: retry_dead_letters_of_queue
-- The oldest messages of the queue that have dead letters, each with the dead letters of all groups (or of the one given).
with oldest as materialized (
    select d.partition_id, d.seq from queen.dead_letter_queue d join queen.queues q using (queue_id)
    where q.name = $1 and ($2::text is null or d.consumer_group = $2)
    group by d.partition_id, d.seq order by min(d.created_at), d.partition_id, d.seq limit $3
)
select * from queen.retry_dead_letters_v1(array(
    select d.id from oldest join queen.dead_letter_queue d using (partition_id, seq)
    where $2::text is null or d.consumer_group = $2));
