-- Retention: bounded steps that a service repeats. Each step walks on from the partition where the last one ended, so a
-- pass over all partitions looks at each once. It deletes whole segments, only ever the oldest of a partition.

drop function if exists queen.retention_rules(timestamptz);

-- What a queue lets go at a moment: everything created up to expired_to or ttl_to, and up to completed_to what all groups
-- have consumed; NULL where that rule is off. Archive holds lower all three, each until it lags by more than its cap.
-- A transactionId whose message is gone may be forgotten when the message was created up to forget_to.
create or replace function queen.retention_rules(t timestamptz)
returns table (queue_id bigint, expired_to timestamptz, ttl_to timestamptz, completed_to timestamptz, forget_to timestamptz)
language sql stable as $$
    select q.queue_id,
           case when q.retention_enabled and q.retention_seconds > 0
                then least(t - make_interval(secs => q.retention_seconds), h.upto) end,
           case when q.ttl > 0 then least(t - make_interval(secs => q.ttl), h.upto) end,
           case when q.retention_enabled and q.completed_retention_seconds > 0
                then least(t - make_interval(secs => q.completed_retention_seconds), h.upto) end,
           t - make_interval(secs => q.dedup_window_seconds)
    from queen.queues q
    left join lateral (
        select min(greatest(a.held_from, t - make_interval(secs => a.cap_seconds))) as upto
        from queen.archive_holds a where a.queue_id = q.queue_id
    ) h on true
$$;

-- The last message that every group has consumed; NULL when there is no group. A cursor whose start is not resolved has
-- consumed nothing.
create or replace function queen.consumed_by_all(pid bigint) returns bigint
language plpgsql stable as $$
begin
    return (select case when bool_or(c.start_from is not null) then 0 else min(c.acked_seq) end
            from queen.partition_consumers c where c.partition_id = pid);
end $$;

-- Wait for the lock of a partition, a second at most; was it won?
create or replace function queen.lock_patiently(pid bigint) returns boolean
language plpgsql set lock_timeout = '1s' as $$
begin
    perform 1 from queen.partition_lookup l where l.partition_id = pid for no key update;
    return found;
exception when lock_not_available then
    return false;
end $$;

-- Lock the cursors that have yet to deliver messages created up to a moment; were all of them free? A pop that has claimed such messages
-- reads them in its next statement: were they removed in between, it would hold a lease on nothing.
create or replace function queen.lock_unread(pid bigint, moment timestamptz) returns boolean
language plpgsql as $$
declare
    upto bigint;
    free bigint;
begin
    if moment is null then
        return true;
    end if;
    upto := queen.seq_at(pid, moment);
    perform 1 from queen.partition_consumers c where c.partition_id = pid and c.acked_seq < upto order by c.group_id for update skip locked;
    get diagnostics free = row_count;
    return free = (select count(*) from queen.partition_consumers c where c.partition_id = pid and c.acked_seq < upto);
end $$;

-- One step: delete up to max_messages (by whole segments, so the last may exceed it) behind partition `after`, looking at
-- max_partitions. removed: [{queue, kind, partition (when it is only one), messages, segments}]; overruns: archive holds that
-- were passed because they lag by more than their cap; next_after: where the next step goes on, NULL at the end of the pass.
-- A partition is waited for only while no other is locked, so a step never deadlocks and never keeps a push waiting behind
-- somebody else's lock. One that others hold is left out; the next step starts with it.
create or replace function queen.trim_v1(
    after bigint, max_messages integer, max_partitions integer, out removed jsonb, out overruns jsonb, out next_after bigint
)
language plpgsql as $$
declare
    t timestamptz := clock_timestamp();
    budget integer := max_messages;
    looked integer := 0;
    p record;
    r record;
    s record;
    held_queue bigint;
    consumed bigint;
    kind text;
    busy bigint;
    locked bigint[] := '{}';
    -- one entry per partition and kind
    pids bigint[] := '{}';
    kinds text[] := '{}';
    uptos bigint[] := '{}';
    times timestamptz[] := '{}';
    messages integer[] := '{}';
    segments integer[] := '{}';
    i integer := 0;
begin
    for p in
        select l.partition_id, l.queue_id, l.trimmed_seq > l.dedup_floor and l.forget_at <= x.forget_to as forgets,
               l.last_seq > l.trimmed_seq and coalesce(x.expired_to, x.ttl_to, x.completed_to) is not null as ruled,
               greatest(x.expired_to, x.ttl_to) as any_to, x.completed_to
        from (select k.* from queen.partition_lookup k where k.partition_id > after order by k.partition_id limit max_partitions) l
        join queen.retention_rules(t) x using (queue_id) order by l.partition_id
    loop
        looked := looked + 1;
        next_after := p.partition_id;
        if not p.forgets then
            continue when not p.ruled;
            select g.created_at, g.last_seq into s from queen.segments g where g.partition_id = p.partition_id order by g.last_seq limit 1;
            continue when not found or not (coalesce(s.created_at <= p.any_to, false) or (coalesce(s.created_at <= p.completed_to, false)
                and coalesce(s.last_seq <= queen.consumed_by_all(p.partition_id), false)));
        end if;
        if held_queue is distinct from p.queue_id then
            -- a queue that is being deleted, or gets an archive hold this moment, is left out
            perform 1 from queen.queues q where q.queue_id = p.queue_id for key share skip locked;
            continue when not found;
            held_queue := p.queue_id;
            select x.* into r from queen.retention_rules(t) x where x.queue_id = held_queue;
        end if;
        if cardinality(locked) = 0 then
            continue when not queen.lock_patiently(p.partition_id);
        else
            perform 1 from queen.partition_lookup l where l.partition_id = p.partition_id for no key update skip locked;
            if not found then
                busy := coalesce(busy, p.partition_id);
                continue;
            end if;
        end if;
        locked := locked || p.partition_id;
        continue when not queen.lock_unread(p.partition_id, greatest(r.expired_to, r.ttl_to));
        -- decided anew: what is read from here on was committed before the lock was won, and cannot change under it
        consumed := case when r.completed_to is not null then queen.consumed_by_all(p.partition_id) end;
        for s in select g.last_seq, g.n, g.created_at from queen.segments g
            where g.partition_id = p.partition_id order by g.last_seq limit max_messages + 1
        loop
            kind := case when s.created_at <= r.completed_to and s.last_seq <= consumed then 'completed'
                         when s.created_at <= r.expired_to then 'expired'
                         when s.created_at <= r.ttl_to then 'ttl' end;
            exit when kind is null or budget <= 0;
            if i = 0 or pids[i] <> p.partition_id or kinds[i] <> kind then
                i := i + 1;
                pids[i] := p.partition_id;
                kinds[i] := kind;
                messages[i] := 0;
                segments[i] := 0;
            end if;
            uptos[i] := s.last_seq;
            times[i] := s.created_at;
            messages[i] := messages[i] + s.n;
            segments[i] := segments[i] + 1;
            budget := budget - s.n;
        end loop;
        if budget <= 0 then
            next_after := p.partition_id - 1;
            exit;
        end if;
    end loop;
    if looked < max_partitions and budget > 0 then
        next_after := null;
    end if;
    next_after := least(next_after, busy - 1);
    delete from queen.segments g using (select x.pid, max(x.upto) as upto from unnest(pids, uptos) x (pid, upto) group by x.pid) d
        where g.partition_id = d.pid and g.last_seq <= d.upto;
    perform queen.note_trimmed(locked, pids, uptos, times, t);
    overruns := queen.note_overruns(pids, times, t);
    removed := queen.note_removed(pids, kinds, messages, segments);
end $$;

-- Write into locked partition_lookup rows what was trimmed, and raise their dedup floors: to what was trimmed when all of it is
-- older than the window; else, once per window, to what had been trimmed when the window began. Never into a segment that
-- is still stored, even where the deletion of a message has cut off its beginning.
create or replace function queen.note_trimmed(locked bigint[], pids bigint[], uptos bigint[], times timestamptz[], t timestamptz) returns void
language plpgsql as $$
declare
    forgettable bigint;
begin
    with n as materialized (
        select l.partition_id, greatest(l.trimmed_seq, x.upto) as seq, greatest(l.trimmed_at, x.at) as at,
               l.dedup_floor, l.forget_seq, l.forget_at <= r.forget_to as due, r.forget_to, k.below
        from queen.partition_lookup l join queen.retention_rules(t) r using (queue_id)
        left join (select u.pid, max(u.upto) as upto, max(u.at) as at from unnest(pids, uptos, times) u (pid, upto, at) group by u.pid) x
            on x.pid = l.partition_id
        left join lateral (select s.last_seq - s.n - s.base_idx as below from queen.segments s
                           where s.partition_id = l.partition_id order by s.last_seq limit 1) k on true
        where l.partition_id = any (locked)
    ), f as materialized (
        select n.*, greatest(n.dedup_floor, least(n.below,
            case when n.at <= n.forget_to then n.seq when n.due then n.forget_seq else n.dedup_floor end)) as floor from n
    ), written as (
        update queen.partition_lookup l set trimmed_seq = f.seq, trimmed_at = f.at, dedup_floor = f.floor,
            forget_seq = case when f.due then f.seq else l.forget_seq end, forget_at = case when f.due then f.at else l.forget_at end
        from f where l.partition_id = f.partition_id
            and (f.seq > l.trimmed_seq or f.floor > l.dedup_floor or (f.due and f.at > l.forget_at))
    )
    select sum(f.floor - f.dedup_floor) into forgettable from f;
    perform queen.note_forgettable(forgettable);
end $$;

-- Count transactionIds that may be forgotten, so that the sweep knows when a pass pays.
create or replace function queen.note_forgettable(n bigint) returns void
language plpgsql as $$
begin
    if n > 0 then
        insert into queen.system_state as s (key, value) values ('dedup_forgettable', to_jsonb(n))
        on conflict (key) do update set value = to_jsonb(s.value::bigint + n), updated_at = clock_timestamp();
    end if;
end $$;

-- Mark the archive holds that lost something they had not released.
create or replace function queen.note_overruns(pids bigint[], times timestamptz[], t timestamptz) returns jsonb
language plpgsql as $$
declare
    answer jsonb;
begin
    with newest as (
        select l.queue_id, max(x.at) as at from unnest(pids, times) x (pid, at)
        join queen.partition_lookup l on l.partition_id = x.pid group by l.queue_id
    ), passed as (
        update queen.archive_holds a set overrun_at = t from newest n, queen.queues q
        where a.queue_id = n.queue_id and q.queue_id = n.queue_id and a.held_from < n.at
        returning q.name, a.holder, a.held_from, n.at
    )
    select coalesce(jsonb_agg(jsonb_build_object('queue', name, 'holder', holder, 'held_from', held_from, 'removed_to', at)), '[]')
        into answer from passed;
    return answer;
end $$;

-- The audit of one step: a row per queue and kind.
create or replace function queen.note_removed(pids bigint[], kinds text[], messages integer[], segments integer[]) returns jsonb
language plpgsql as $$
declare
    answer jsonb;
begin
    with counted as (
        select q.name as queue, x.kind, case when count(distinct p.partition_id) = 1 then min(p.name) end as partition,
               sum(x.messages) as messages, sum(x.segments) as segments, count(distinct p.partition_id) as partitions
        from unnest(pids, kinds, messages, segments) x (pid, kind, messages, segments)
        join queen.partitions p on p.partition_id = x.pid join queen.queues q using (queue_id) group by q.name, x.kind
    ), audit as (
        insert into queen.retention_history (kind, queue_name, partition_name, messages, detail)
        select c.kind, c.queue, c.partition, c.messages, format('%s segments of %s partitions', c.segments, c.partitions) from counted c
    )
    select coalesce(jsonb_agg(jsonb_build_object('queue', c.queue, 'kind', c.kind, 'partition', c.partition,
                                                 'messages', c.messages, 'segments', c.segments)), '[]')
        into answer from counted c;
    return answer;
end $$;

-- Hold a queue for an archive: from the answer on, retention keeps what was created after held_from. The row lock waits for a
-- step in flight that does not know of the hold. Repeated, it only moves on. NULL when there is no such queue.
create or replace function queen.acquire_hold_v1(queue_name text, hold_holder text, hold_from timestamptz, hold_cap integer) returns queen.archive_holds
language plpgsql as $$
declare
    qid bigint;
    hold queen.archive_holds;
begin
    select q.queue_id into qid from queen.queues q where q.name = queue_name for update;
    insert into queen.archive_holds as a (queue_id, holder, held_from, cap_seconds)
    select qid, hold_holder, coalesce(hold_from, '-infinity'), hold_cap where qid is not null
    on conflict (queue_id, holder) do update set held_from = greatest(a.held_from, excluded.held_from),
        cap_seconds = excluded.cap_seconds, updated_at = clock_timestamp()
    returning * into hold;
    return hold;
end $$;

-- Is a partition without messages, and has it been without any activity since that time? Not when a lease is live, and not
-- where something depends on the row itself: state of a stream, or the position of a group that starts in each partition as
-- its first pop there says (made anew, the partition would be a first time again).
create or replace function queen.is_idle(pid bigint, since timestamptz) returns boolean
language sql stable as $$
    select l.last_message_created_at <= since and p.created_at <= since
        and not exists (select from queen.segments s where s.partition_id = pid)
        and not exists (
            select from queen.partition_consumers c join queen.consumer_groups_metadata g using (group_id)
            where c.partition_id = pid and (c.last_consumed_at > since or c.lease_expires_at > clock_timestamp()
                or (g.subscription_mode is null and c.start_from is null)))
        and not exists (
            select from queen.stream_queries q join queen.stream_state s on s.query_id = q.query_id and s.partition_uid = p.uid)
    from queen.partitions p join queen.partition_lookup l using (partition_id) where p.partition_id = pid
$$;

-- One step: remove up to max_removed partitions that have been idle for so long, and for the dedup window of their queue.
-- The queue's lock keeps partitions from being made and groups from registering meanwhile; nothing is waited for.
create or replace function queen.remove_idle_partitions_v1(
    after bigint, idle_seconds double precision, max_removed integer, max_partitions integer, out removed jsonb, out next_after bigint
)
language plpgsql as $$
declare
    t timestamptz := clock_timestamp();
    c record;
    cursors integer;
    gone bigint[] := '{}';
    forgettable bigint := 0;
begin
    for c in
        select l.partition_id, l.queue_id, l.last_seq - l.dedup_floor as forgettable, l.last_message_created_at,
               t - make_interval(secs => greatest(idle_seconds, q.dedup_window_seconds)) as since
        from (select x.* from queen.partition_lookup x where x.partition_id > after order by x.partition_id limit max_partitions) l
        join queen.queues q using (queue_id) order by l.partition_id
    loop
        next_after := c.partition_id;
        continue when c.last_message_created_at > c.since or queen.is_idle(c.partition_id, c.since) is not true;
        perform 1 from queen.queues q where q.queue_id = c.queue_id for no key update skip locked;
        continue when not found;
        perform 1 from queen.partition_lookup l where l.partition_id = c.partition_id for update skip locked;
        continue when not found;
        perform 1 from queen.partition_consumers k where k.partition_id = c.partition_id for update skip locked;
        get diagnostics cursors = row_count;
        continue when cursors < (select count(*) from queen.partition_consumers k where k.partition_id = c.partition_id)
            or queen.is_idle(c.partition_id, c.since) is not true;
        gone := gone || c.partition_id;
        forgettable := forgettable + c.forgettable;
        exit when cardinality(gone) >= max_removed;
    end loop;
    removed := queen.note_idle(gone);
    perform queen.note_partitions_removed(gone);
    delete from queen.partition_consumers k where k.partition_id = any (gone);
    delete from queen.partition_lookup l where l.partition_id = any (gone);
    delete from queen.partitions p where p.partition_id = any (gone);
    perform queen.note_forgettable(forgettable);
    if not exists (select from queen.partition_lookup l where l.partition_id > next_after) then
        next_after := null;
    end if;
end $$;

create or replace function queen.note_idle(gone bigint[]) returns jsonb
language plpgsql as $$
declare
    answer jsonb;
begin
    with counted as (
        select q.name as queue, count(*) as partitions, case when count(*) = 1 then min(p.name) end as partition
        from queen.partitions p join queen.queues q using (queue_id) where p.partition_id = any (gone) group by q.name
    ), audit as (
        insert into queen.retention_history (kind, queue_name, partition_name, messages, detail)
        select 'partitions', queue, partition, 0, format('%s idle partitions', partitions) from counted
    )
    select coalesce(jsonb_agg(jsonb_build_object('queue', queue, 'partition', partition, 'partitions', partitions)), '[]')
        into answer from counted;
    return answer;
end $$;

-- One step: delete segments of partitions that no longer exist, which only the deletion of a queue leaves behind. It sets
-- system_state 'orphans' to true; here that turns into the position of the pass, and at its end into false.
create or replace function queen.sweep_orphans_v1(max_messages integer, max_partitions integer, out removed bigint, out more boolean)
language plpgsql as $$
declare
    state jsonb;
    after bigint;
    pid bigint;
    upto bigint;
    budget bigint := max_messages;
begin
    removed := 0;
    more := false;
    select s.value into state from queen.system_state s where s.key = 'orphans' and s.value <> 'false' for update skip locked;
    if not found then
        return;
    end if;
    after := case when jsonb_typeof(state) = 'number' then state::bigint else 0 end;
    for looked in 1 .. max_partitions loop
        select s.partition_id into pid from queen.segments s where s.partition_id > after order by s.partition_id, s.last_seq limit 1;
        exit when not found;
        if not exists (select from queen.partitions p where p.partition_id = pid) then
            select max(x.last_seq) into upto from (
                select s.last_seq, sum(s.n) over (order by s.last_seq) - s.n as before
                from (select g.last_seq, g.n from queen.segments g where g.partition_id = pid order by g.last_seq limit budget) s
            ) x where x.before < budget;
            with d as (delete from queen.segments s where s.partition_id = pid and s.last_seq <= upto returning s.n)
            select budget - coalesce(sum(d.n), 0) into budget from d;
            exit when budget <= 0;
        end if;
        after := pid;
    end loop;
    removed := max_messages - budget;
    more := pid is not null;
    update queen.system_state s set value = case when more then to_jsonb(after) else 'false' end, updated_at = clock_timestamp()
        where s.key = 'orphans';
    if not more then
        -- whatever the deleted queues had in dedup is to go: one pass pays in any case
        perform queen.note_forgettable(queen.dedup_size());
    end if;
end $$;

-- About how many rows queen.dedup has.
create or replace function queen.dedup_size() returns bigint
language sql stable as $$
    select greatest(pg_relation_size('queen.dedup') / 60, 1)
$$;

-- One step: forget the transactionIds that may be forgotten in the next max_blocks blocks of queen.dedup. A pass reads the table
-- once from front to end, without an index; it begins when it is worth it: when about a tenth of the table may go.
create or replace function queen.sweep_dedup_v1(max_blocks integer, out removed bigint, out more boolean)
language plpgsql as $$
declare
    state jsonb;
    forgettable bigint;
    block bigint;
    low tid;
    high tid;
begin
    removed := 0;
    more := false;
    insert into queen.system_state (key, value) values ('dedup_sweep', 'null') on conflict (key) do nothing;
    select s.value into state from queen.system_state s where s.key = 'dedup_sweep' for update skip locked;
    if not found then
        return;
    end if;
    if state = 'null' then
        select s.value::bigint into forgettable from queen.system_state s where s.key = 'dedup_forgettable';
        more := coalesce(forgettable > 0 and forgettable >= queen.dedup_size() / 10, false);
        update queen.system_state s set value = '0', updated_at = clock_timestamp()
            where more and s.key in ('dedup_forgettable', 'dedup_sweep');
        return;
    end if;
    block := state::bigint;
    low := format('(%s,0)', block)::tid;
    high := format('(%s,0)', block + max_blocks)::tid;
    delete from queen.dedup d using (
        select x.partition_id, case when l.partition_id is not null then l.dedup_floor
                when not exists (select from queen.partitions p where p.partition_id = x.partition_id) then 9223372036854775807 end as floor
        from (select distinct y.partition_id from queen.dedup y where y.ctid >= low and y.ctid < high) x
        left join queen.partition_lookup l on l.partition_id = x.partition_id
    ) f where d.ctid >= low and d.ctid < high and d.partition_id = f.partition_id
        and d.seq + coalesce(upper(d.given), 1) - 1 <= f.floor;
    get diagnostics removed = row_count;
    block := block + max_blocks;
    more := block < pg_relation_size('queen.dedup') / current_setting('block_size')::integer;
    update queen.system_state s set value = case when more then to_jsonb(block) else 'null' end, updated_at = clock_timestamp()
        where s.key = 'dedup_sweep';
end $$;
