-- Push: one call, one commit, one segment per partition.

-- The partition is gone, or is another than the caller takes it for: either way its number is not that of the name.
create or replace function queen.refuse_place(pid bigint) returns void
language plpgsql as $$
begin
    raise exception 'partition % does not exist', pid using errcode = 'QM001', detail = pid::text;
end $$;

-- The guard of queen.segments, for every insert path. What a segment holds must already be covered by the
-- partition_lookup row of its partition (so the lookup cannot be bypassed), and every drained cursor of the partition is
-- woken. The wake is a statement of its own: its snapshot is taken after the partition's row lock was won, so it
-- sees an ack that has just declared the partition drained.
create or replace function queen.segments_inserted() returns trigger
language plpgsql as $$
declare
    pids bigint[];
    seqs bigint[];
    bad pg_catalog.record;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'messages must be pushed in a READ COMMITTED transaction, not %', current_setting('transaction_isolation')
            using errcode = 'QM006';
    end if;
    select array_agg(partition_id), array_agg(last_seq) into pids, seqs from new_segments;
    select n.pid, l.queue_id into bad
        from unnest(pids, seqs) n (pid, seq) left join queen.partition_lookup l on l.partition_id = n.pid
        where l.partition_id is null or l.queue_id = 0 or n.seq > l.last_seq limit 1;
    if found then
        if bad.queue_id > 0 then
            raise exception 'queen.segments is written by queen.push_v2, queen.push_segment_v2 and INSERT INTO queen.messages only'
                using errcode = 'QM007';
        end if;
        perform queen.refuse_place(bad.pid);
    end if;
    with drained as materialized (
        select c.partition_id, c.group_id from queen.partition_consumers c
        where c.partition_id = any (pids) and c.ready_at is null
        order by c.partition_id, c.group_id for update
    )
    update queen.partition_consumers c set ready_at = clock_timestamp()
        from drained d where c.partition_id = d.partition_id and c.group_id = d.group_id;
    return null;
end $$;

create or replace trigger segments_inserted after insert on queen.segments
    referencing new table as new_segments for each statement execute function queen.segments_inserted();

drop function if exists queen.depth_of(integer);

-- How many messages of a queue are not consumed by every group yet.
create or replace function queen.depth_of(qid bigint) returns bigint
language sql stable as $$
    select coalesce(sum(l.last_seq - greatest(l.trimmed_seq, coalesce(c.low, 0))), 0)::bigint
    from queen.partition_lookup l
    left join lateral (select min(c.acked_seq) as low from queen.partition_consumers c where c.partition_id = l.partition_id) c on true
    where l.queue_id = qid
$$;

drop function if exists queen.reserve_depth(integer[], bigint[], integer[]);

drop function if exists queen.reserve_depth(integer[], bigint[], integer[], integer[]);

-- Take room for a push in queues that have a maxSize. The bound is never below the true depth: acks only lower the
-- depth, and whatever raises it otherwise (seek, a new group) forgets the bound. So the exact count is needed only when
-- the bound says full. And only then do the tags matter here: a queue that is full refuses nobody who meant another one.
create or replace function queen.reserve_depth(bounded_queues bigint[], pids bigint[], ns integer[], tags integer[]) returns void
language plpgsql as $$
declare
    want pg_catalog.record;
    room bigint;
begin
    for want in
        select d.queue_id, q.name, q.max_size, d.bound,
               (select sum(x.n) from unnest(pids, ns) x (pid, n)
                join queen.partition_lookup l on l.partition_id = x.pid where l.queue_id = d.queue_id) as n
        from queen.queue_depth d join queen.queues q using (queue_id)
        where d.queue_id = any (bounded_queues) and q.max_size > 0 order by d.queue_id for update of d
    loop
        if want.bound is null or want.bound + want.n > want.max_size then
            want.bound := queen.depth_of(want.queue_id);
        end if;
        room := want.max_size - want.bound;
        if want.n > room then
            perform queen.refuse_place(x.pid) from unnest(pids, tags) x (pid, tag)
                left join queen.partition_lookup l on l.partition_id = x.pid where l.partition_id is null or l.tag <> x.tag limit 1;
            raise exception 'queue % is full: maxSize is %, room for % more, % given', want.name, want.max_size, greatest(room, 0), want.n
                using errcode = 'QM002', detail = want.queue_id::text, hint = format('%s %s', want.max_size, greatest(room, 0));
        end if;
        update queen.queue_depth set bound = want.bound + want.n where queue_id = want.queue_id;
    end loop;
end $$;

-- The caller knows an earlier configuration of a queue.
create or replace function queen.refuse_stale(unbounded_ok boolean) returns void
language plpgsql as $$
begin
    raise exception 'a queue of this push % now', case when unbounded_ok then 'is encrypted' else 'has a maxSize' end using errcode = 'QM003';
end $$;

drop function if exists queen.push_v1(bigint[], integer[], uuid[], uuid[], bytea[], bytea[], bytea[], bytea[], text[], uuid[], integer[], integer[]);
drop function if exists queen.push_v1(bigint[], integer[], uuid[], uuid[], bytea[], bytea[], bytea[], bytea[], text[], uuid[], integer[], integer[],
    integer[], integer[]);

-- Fail like the insert of a key that is already there when one of these keys is an id that its partition gave to a message without
-- a transactionId: such ids have no row of their own. The caller holds the locks of the partitions.
create or replace function queen.refuse_given(pids bigint[], keys uuid[]) returns void
language plpgsql as $$
begin
    perform 1 from unnest(pids, keys) k (pid, key) where queen.remembered(k.pid, k.key) is not null limit 1;
    if found then
        raise exception 'a transactionId of this push is stored already' using errcode = 'unique_violation', constraint = 'dedup_pkey';
    end if;
end $$;

-- ns, bases, last_ids, txs, datas, traces, subs, encs: one entry per segment, pids: the partition of each, ascending.
-- befores, afters: how many messages of its partition stand in the segments of this call before and after each, when a partition
-- has several; their messages have one base. NULL: each partition stands once.
-- keys: the dedup keys, key_pos: for each, (index of its segment << 16) + index of its message, both from 0.
-- encs: NULL for a segment says that the caller takes its queue for not encrypted.
-- bounded_queues: the queues among them that have a maxSize, as the caller knows it.
-- tags: for each segment, the partition_tag of the names for which the caller uses its partition's number; NULL = not checked.
-- givens: for each key that is the base_key of a flush, the indexes of its messages without a transactionId. NULL: no key is one.
-- lookalikes: the places in keys, from 1, of transactionIds that carry the mark of segment_base. NULL: there are none.
-- A key that is already there fails the call with unique_violation: look it up, drop that message, call again.
create or replace function queen.push_v2(
    pids bigint[], ns integer[], bases uuid[], last_ids uuid[], txs bytea[], datas bytea[], traces bytea[], subs bytea[],
    encs text[], keys uuid[], key_pos integer[], bounded_queues bigint[], befores integer[] default null, afters integer[] default null,
    tags integer[] default null, givens int4multirange[] default null, lookalikes integer[] default null
) returns table (partition_id bigint, last_seq bigint, created_at timestamptz)
language plpgsql as $$
#variable_conflict use_column
declare
    got bigint[];
    lasts bigint[];
    times pg_catalog.timestamptz[];
    misplaced bigint;
    unbounded_ok boolean;
    encrypted_ok boolean;
begin
    if cardinality(bounded_queues) > 0 then
        perform queen.reserve_depth(bounded_queues, pids, ns, tags);
    end if;
    with g as materialized (
        select g.pid, g.n, g.base, g.last_id, g.tx, g.data, g.trace, g.sub, g.enc, coalesce(g.before, 0) as before, coalesce(g.after, 0) as after, g.tag
        from unnest(pids, ns, bases, last_ids, txs, datas, traces, subs, encs, befores, afters, tags)
            g (pid, n, base, last_id, tx, data, trace, sub, enc, before, after, tag)
    ), allocated as (
        -- a partition that is gone is inserted with queue 0, which the guard of queen.segments refuses
        insert into queen.partition_lookup as l (partition_id, queue_id, last_seq, last_message_id, last_message_created_at)
        select g.pid, 0, g.before + g.n, g.last_id, clock_timestamp() from g where g.after = 0 order by g.pid
        on conflict (partition_id) do update set
            last_seq = l.last_seq + excluded.last_seq,
            last_message_id = excluded.last_message_id,
            last_message_created_at = greatest(l.last_message_created_at, clock_timestamp())
        returning l.partition_id, l.last_seq, l.last_message_created_at as at, l.encrypted, l.tag,
            not l.bounded or l.queue_id = any (bounded_queues) as ok
    ), stored as (
        insert into queen.segments (partition_id, last_seq, created_at, n, base_idx, base, tx, data, trace_ids, subs, enc)
        select a.partition_id, a.last_seq - g.after, a.at, g.n, g.before, g.base, g.tx, g.data, g.trace, g.sub, g.enc
        from allocated a join g on g.pid = a.partition_id
    )
    select array_agg(a.partition_id order by a.partition_id, g.before), array_agg(a.last_seq - g.after order by a.partition_id, g.before),
           array_agg(a.at order by a.partition_id, g.before), min(case when a.tag <> g.tag then a.partition_id end),
           bool_and(a.ok), bool_and(not a.encrypted or g.enc is not null)
        into got, lasts, times, misplaced, unbounded_ok, encrypted_ok from allocated a join g on g.pid = a.partition_id;
    if misplaced is not null then
        perform queen.refuse_place(misplaced);
    end if;
    if got is distinct from pids then
        raise exception 'partitions must be given in ascending order' using errcode = 'QM008';
    end if;
    if not (unbounded_ok and encrypted_ok) then
        perform queen.refuse_stale(unbounded_ok);
    end if;
    if lookalikes is not null then
        perform queen.refuse_given(array_agg(pids[(key_pos[i] >> 16) + 1]), array_agg(keys[i])) from unnest(lookalikes) i;
    end if;
    -- the third array costs every row of the common case a few percent
    if givens is null then
        insert into queen.dedup (h, partition_id, seq)
            select k.h, pids[(k.pos >> 16) + 1], lasts[(k.pos >> 16) + 1] - ns[(k.pos >> 16) + 1] + (k.pos & 65535) + 1
            from unnest(keys, key_pos) k (h, pos);
    else
        insert into queen.dedup (h, partition_id, seq, given)
            select k.h, pids[(k.pos >> 16) + 1], lasts[(k.pos >> 16) + 1] - ns[(k.pos >> 16) + 1] + (k.pos & 65535) + 1, k.given
            from unnest(keys, key_pos, givens) k (h, pos, given);
    end if;
    return query select * from unnest(got, lasts, times);
end $$;

drop function if exists queen.push_segment_v1(bigint, integer, uuid, uuid, bytea, bytea, bytea, bytea, text, uuid[], integer[], integer);

-- push_v2 for one segment, which is what a producer that is alone pushes: without arrays and joins it costs PostgreSQL a quarter
-- less. key_pos: the index of each key's message, from 0, NULL when the first key is the first message's and so on. bounded_queue:
-- the segment's queue, when it has a maxSize as the caller knows it. givens, lookalikes: as in push_v2. Returns the last sequence
-- number.
create or replace function queen.push_segment_v2(
    pid bigint, n integer, base uuid, last_id uuid, tx bytea, data bytea, trace bytea, sub bytea, enc text, keys uuid[], key_pos integer[],
    bounded_queue bigint, tag integer default null, givens int4multirange[] default null, lookalikes integer[] default null
) returns bigint
language plpgsql as $$
declare
    last bigint;
    created timestamptz;
    misplaced boolean;
    unbounded_ok boolean;
    encrypted_ok boolean;
begin
    if bounded_queue is not null then
        perform queen.reserve_depth(array[bounded_queue], array[pid], array[n], array[tag]);
    end if;
    -- a partition that is gone is inserted with queue 0, as in push_v2
    insert into queen.partition_lookup as l (partition_id, queue_id, last_seq, last_message_id, last_message_created_at)
        values (pid, 0, n, last_id, clock_timestamp())
        on conflict (partition_id) do update set
            last_seq = l.last_seq + excluded.last_seq,
            last_message_id = excluded.last_message_id,
            last_message_created_at = greatest(l.last_message_created_at, clock_timestamp())
        returning l.last_seq, l.last_message_created_at, l.tag <> push_segment_v2.tag,
            not l.bounded or l.queue_id is not distinct from bounded_queue, not l.encrypted or enc is not null
        into last, created, misplaced, unbounded_ok, encrypted_ok;
    if misplaced then
        perform queen.refuse_place(pid);
    end if;
    insert into queen.segments (partition_id, last_seq, created_at, n, base_idx, base, tx, data, trace_ids, subs, enc)
        values (pid, last, created, n, 0, base, tx, data, trace, sub, enc);
    if not (unbounded_ok and encrypted_ok) then
        perform queen.refuse_stale(unbounded_ok);
    end if;
    if lookalikes is not null then
        perform queen.refuse_given(array_agg(pid), array_agg(keys[i])) from unnest(lookalikes) i;
    end if;
    if givens is not null then
        insert into queen.dedup (h, partition_id, seq, given)
            select k.h, pid, last - n + coalesce(k.pos + 1, k.place), k.given
            from unnest(keys, key_pos, givens) with ordinality k (h, pos, given, place);
    elsif key_pos is null then
        insert into queen.dedup (h, partition_id, seq) select k.h, pid, last - n + k.place from unnest(keys) with ordinality k (h, place);
    else
        insert into queen.dedup (h, partition_id, seq) select k.h, pid, last - n + k.pos + 1 from unnest(keys, key_pos) k (h, pos);
    end if;
    return last;
end $$;

-- The messages that already hold these keys.
create or replace function queen.stored_keys_v1(pids bigint[], keys uuid[])
returns table (partition_id bigint, h uuid, seq bigint, message_id uuid)
language sql stable as $$
    select d.partition_id, d.h, d.seq,
           (select m.id from queen.message_at(d.partition_id, d.seq) m)
    from unnest(pids, keys) k (pid, h) join queen.dedup d on d.h = k.h and d.partition_id = k.pid
$$;

-- The same for keys that may be ids which the server gave: they have no row of their own.
create or replace function queen.stored_keys_v2(pids bigint[], keys uuid[])
returns table (partition_id bigint, h uuid, seq bigint, message_id uuid)
language sql stable as $$
    select k.pid, k.h, r.seq, (select m.id from queen.message_at(k.pid, r.seq) m)
    from unnest(pids, keys) k (pid, h) left join queen.dedup d on d.h = k.h and d.partition_id = k.pid,
        lateral (select coalesce(d.seq, queen.remembered(k.pid, k.h)) as seq) r
    where r.seq is not null
$$;
