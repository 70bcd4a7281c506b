-- Dead letters: keeping a copy, and pushing it again.

-- Keep a copy of a stored message for a group. One that is there already gets the newer failure.
create or replace function queen.keep_dead_letter(pid bigint, group_name text, at_seq bigint, reason text, failures integer) returns void
language sql as $$
    insert into queen.dead_letter_queue (queue_id, partition_id, partition_uid, partition_name, consumer_group, seq, message_id,
        transaction_id, trace_id, producer_sub, data, encrypted, error_message, retry_count, created_at)
    select p.queue_id, pid, p.uid, p.name, group_name, at_seq, m.id,
           m.transaction_id, m.trace_id, m.producer_sub, convert_to(m.payload, 'UTF8'), m.encrypted, reason, failures, m.created_at
    from queen.partitions p, queen.message_at(pid, at_seq) m where p.partition_id = pid
    on conflict (partition_id, consumer_group, seq) do update set
        error_message = excluded.error_message, retry_count = excluded.retry_count, failed_at = excluded.failed_at
$$;

-- Push dead letters again as new messages of their partitions, in their old order, and remove them: both or neither. A new
-- message has a new id, and that is its transactionId, because the old one may still be remembered. Dead letters that
-- several groups have of one message make one new message. A partition that is gone is made again.
-- Locks are taken in the order of a push, the dead letters last; one that somebody else removed meanwhile undoes everything
-- (serialization_failure: call again).
create or replace function queen.retry_dead_letters_v1(letters uuid[])
returns table (dead_letter uuid, queue text, partition text, partition_uid uuid, message_id uuid, transaction_id text, seq bigint)
language plpgsql as $$
#variable_conflict use_column
declare
    b record;
    lasts bigint[];
    removed integer;
begin
    -- under their lock, queues are not deleted and keep their options
    perform 1 from queen.queues q where q.queue_id in (select d.queue_id from queen.dead_letter_queue d where d.id = any (letters))
        order by q.name for no key update;
    perform queen.ensure_partitions_v2(n.queues, n.partitions) from (
        select array_agg(q.name) as queues, array_agg(d.partition_name) as partitions
        from queen.dead_letter_queue d join queen.queues q using (queue_id) where d.id = any (letters)) n
        where n.queues is not null;
    select * into b from queen.pack_dead_letters(letters);
    if cardinality(b.pids) is null then
        return;
    end if;
    select array_agg(p.last_seq order by p.partition_id) into lasts from queen.push_v2(
        b.pids, b.ns, b.bases, b.last_ids, b.txs, b.datas, b.traces, b.subs, b.encs, b.keys, b.key_pos, b.bounded, givens => b.givens) p;
    return query
        select x.id, q.name, p.name, p.uid, m.id, m.id::text, lasts[x.segment] - b.ns[x.segment] + x.place
        from unnest(b.letters, b.segments, b.places) x (id, segment, place)
        join queen.partitions p on p.partition_id = b.pids[x.segment] join queen.queues q on q.queue_id = p.queue_id,
        lateral (select queen.message_id(b.bases[x.segment], x.place - 1) as id) m
        order by x.segment, x.place, x.id;
    delete from queen.dead_letter_queue d where d.id = any (b.letters);
    get diagnostics removed = row_count;
    if removed < cardinality(b.letters) then
        raise exception 'a dead letter was removed while it was retried' using errcode = 'serialization_failure';
    end if;
end $$;

drop function if exists queen.pack_dead_letters(uuid[]);

drop function if exists queen.pack_dead_letters(uuid[]);

-- The arguments of push_v2 for dead letters, and for each dead letter its segment and its place there, both from 1.
create or replace function queen.pack_dead_letters(
    wanted uuid[], out pids bigint[], out ns integer[], out bases uuid[], out last_ids uuid[], out txs bytea[], out datas bytea[],
    out traces bytea[], out subs bytea[], out encs text[], out keys uuid[], out key_pos integer[], out bounded bigint[],
    out givens int4multirange[], out letters uuid[], out segments integer[], out places integer[]
)
language sql as $$
    with d as materialized (
        select x.id, x.data, x.trace_id, x.producer_sub, x.encrypted, p.partition_id as pid, q.queue_id, q.max_size > 0 as bounded, q.encryption_enabled as sealed,
               dense_rank() over (order by p.partition_id)::integer as segment,
               dense_rank() over (partition by p.partition_id order by x.created_at, x.partition_id, x.seq)::integer as place
        from queen.dead_letter_queue x join queen.queues q on q.queue_id = x.queue_id
        join queen.partitions p on p.queue_id = x.queue_id and p.name = x.partition_name where x.id = any (wanted)
    ), m as (
        select distinct on (d.segment, d.place) d.* from d order by d.segment, d.place
    ), s as materialized (
        select m.segment, m.pid, count(*)::integer as n, queen.segment_base() as base, string_agg(m.data, '\x1e' order by m.place) as data,
               case when count(m.trace_id) > 0 then string_agg(coalesce(m.trace_id::text, ''), E'\x1e' order by m.place) end as trace,
               case when count(m.producer_sub) > 0 then string_agg(coalesce(m.producer_sub, ''), E'\x1e' order by m.place) end as sub,
               case when bool_or(m.encrypted or m.sealed) then string_agg(m.encrypted::integer::text, '' order by m.place) end as enc
        from m group by m.segment, m.pid
    )
    select array_agg(s.pid order by s.segment), array_agg(s.n order by s.segment), array_agg(s.base order by s.segment),
           array_agg(queen.message_id(s.base, s.n - 1) order by s.segment), array_agg(null::bytea order by s.segment),
           array_agg(s.data order by s.segment), array_agg(convert_to(s.trace, 'UTF8') order by s.segment),
           array_agg(convert_to(s.sub, 'UTF8') order by s.segment), array_agg(s.enc order by s.segment),
           array_agg(queen.base_key(s.base) order by s.segment), array_agg((s.segment - 1) << 16 order by s.segment),
           (select coalesce(array_agg(distinct d.queue_id) filter (where d.bounded), '{}') from d),
           array_agg(int4multirange(int4range(0, s.n)) order by s.segment),
           (select array_agg(d.id order by d.id) from d), (select array_agg(d.segment order by d.id) from d),
           (select array_agg(d.place order by d.id) from d)
    from s
$$;
