-- What people do with single messages and with the contents of a queue: look, delete, dead-letter, clear.

-- How far a partition is settled: up to `passed` completed, up to `leased` being processed. Queue mode decides where it is used;
-- where there are only named groups, a message is completed when all of them have passed it, and pending before.
create or replace function queen.progress_of(pid bigint, out queue_acked bigint, out passed bigint, out leased bigint)
language sql stable as $$
    select x.queue_acked, x.passed, greatest(x.passed, x.queue_leased)
    from (
        select max(k.position) filter (where k.queue_mode) as queue_acked,
               coalesce(max(k.position) filter (where k.queue_mode), min(k.position), 0) as passed,
               max(k.lease_to) filter (where k.queue_mode and k.lease_expires_at > clock_timestamp()) as queue_leased
        from (select queen.position_of(pid, c.acked_seq, c.start_from) as position, c.lease_to, c.lease_expires_at,
                     g.name = '__QUEUE_MODE__' as queue_mode
              from queen.partition_consumers c join queen.consumer_groups_metadata g using (group_id) where c.partition_id = pid) k
    ) x
$$;

-- The state of one message, over all groups and for queue mode alone (NULL where that is not used).
create or replace function queen.status_of(
    pid bigint, at_seq bigint, out status text, out queue_status text, out consumed_by integer, out total_groups integer, out leased_until timestamptz
)
language sql stable as $$
    select case when exists (select from queen.dead_letter_queue d where d.partition_id = pid and d.seq = at_seq) then 'dead_letter'
                else s.settled end,
           case when p.queue_acked is not null then s.settled end, k.consumed, k.groups, k.until
    from queen.progress_of(pid) p,
    lateral (select case when at_seq <= p.passed then 'completed' when at_seq <= p.leased then 'processing' else 'pending' end as settled) s,
    lateral (
        select (count(*) filter (where g.name <> '__QUEUE_MODE__'
                    and at_seq <= queen.position_of(pid, c.acked_seq, c.start_from)))::integer as consumed,
               (count(*) filter (where g.name <> '__QUEUE_MODE__'))::integer as groups,
               max(c.lease_expires_at) filter (where at_seq > c.acked_seq and at_seq <= c.lease_to
                    and c.lease_expires_at > clock_timestamp()) as until
        from queen.partition_consumers c join queen.consumer_groups_metadata g using (group_id) where c.partition_id = pid
    ) k
$$;

-- The newest messages of one partition in a time range, with a status when one is wanted.
create or replace function queen.newest_messages(pid bigint, newest bigint, wanted text, since timestamptz, until timestamptz, most integer)
returns table (created_at timestamptz, seq bigint)
language plpgsql stable as $$
declare
    lo bigint := case when since is null then 0 else queen.seq_at(pid, since - interval '1 microsecond') end;
    hi bigint := case when until is null then newest else queen.seq_at(pid, until) end;
    p record;
    top bigint;
begin
    if wanted = 'dead_letter' then
        return query select m.created_at, d.seq
            from (select distinct x.seq from queen.dead_letter_queue x where x.partition_id = pid and x.seq > lo and x.seq <= hi) d,
            lateral queen.message_at(pid, d.seq) m order by d.seq desc limit most;
        return;
    end if;
    if wanted is not null then
        p := queen.progress_of(pid);
        lo := case wanted when 'pending' then greatest(lo, p.leased) when 'processing' then greatest(lo, p.passed) else lo end;
        hi := case wanted when 'completed' then least(hi, p.passed) when 'processing' then least(hi, p.leased) else hi end;
    end if;
    select s.last_seq into top from queen.segments s where s.partition_id = pid and s.last_seq >= hi order by s.last_seq limit 1;
    return query select s.created_at, m.seq
        from queen.segments s, lateral generate_series(greatest(s.last_seq - s.n, lo) + 1, least(s.last_seq, hi)) m (seq)
        where s.partition_id = pid and s.last_seq > lo and s.last_seq <= coalesce(top, hi)
            and (wanted is null or not exists (select from queen.dead_letter_queue d where d.partition_id = pid and d.seq = m.seq))
        order by s.last_seq desc, m.seq desc limit most;
end $$;

-- A page of messages, newest first. Partitions are visited by their newest message, and only until no other can have one that
-- belongs on the page; so the cost follows the page, not the number of partitions.
create or replace function queen.list_messages_v1(
    queue_name text, partition_name text, in_namespace text, in_task text, wanted text, since timestamptz, until timestamptz,
    page integer, skip integer
) returns table (partition_id bigint, seq bigint)
language plpgsql stable as $$
#variable_conflict use_column
declare
    p record;
    most integer := page + skip;
    times timestamptz[] := '{}';
    pids bigint[] := '{}';
    seqs bigint[] := '{}';
    more_times timestamptz[];
    more_seqs bigint[];
begin
    for p in
        select l.partition_id, l.last_seq, l.last_message_created_at as newest
        from queen.queues q join queen.partitions x on x.queue_id = q.queue_id join queen.partition_lookup l on l.partition_id = x.partition_id
        where (queue_name is null or q.name = queue_name) and (partition_name is null or x.name = partition_name)
            and (in_namespace is null or q.namespace = in_namespace) and (in_task is null or q.task = in_task)
            and l.last_seq > l.trimmed_seq and (since is null or l.last_message_created_at >= since)
        order by l.last_message_created_at desc, l.partition_id
    loop
        exit when cardinality(times) >= most and p.newest < times[most];
        select array_agg(n.created_at), array_agg(n.seq) into more_times, more_seqs
            from queen.newest_messages(p.partition_id, p.last_seq, wanted, since, until, most) n;
        continue when more_seqs is null;
        select array_agg(m.at order by m.at desc, m.pid, m.seq desc), array_agg(m.pid order by m.at desc, m.pid, m.seq desc),
               array_agg(m.seq order by m.at desc, m.pid, m.seq desc) into times, pids, seqs
        from (select * from (
                  select * from unnest(times, pids, seqs) k (at, pid, seq)
                  union all
                  select n.at, p.partition_id, n.seq from unnest(more_times, more_seqs) n (at, seq)
              ) a order by a.at desc, a.pid, a.seq desc limit most) m;
    end loop;
    return query select k.pid, k.seq from unnest(pids, seqs) with ordinality k (pid, seq, o) where k.o > skip order by k.o;
end $$;

-- count entries of a joined column from the one numbered first (from 1); NULL when none of them says anything.
create or replace function queen.slice(joined bytea, first integer, count integer) returns bytea
language sql immutable parallel safe as $$
    select convert_to(nullif(array_to_string((string_to_array(convert_from(joined, 'UTF8'), E'\x1e'))[first:first + count - 1], E'\x1e'), ''), 'UTF8')
$$;

-- Take one stored message out of its segment, under the locks of its partition and of all its cursors: a pop has either read it
-- or does not find it. Its neighbours keep their numbers and ids, and cursors just find a gap. Its transactionId is free again,
-- whether the client or the server made it; the row for the ids of a flush stays, for the others and for a push that is repeated
-- because its answer was lost.
-- A lease that ends with the message ends with the one before it now, or at once when there is none left.
create or replace function queen.remove_message(pid bigint, at_seq bigint) returns void
language plpgsql as $$
declare
    s queen.segments;
    o integer;
    before bigint;
begin
    select g.* into s from queen.segments g where g.partition_id = pid and g.last_seq >= at_seq order by g.last_seq limit 1;
    o := at_seq - s.last_seq + s.n;
    delete from queen.dedup d where d.h = queen.dedup_key(queen.entry(s.tx, o)) and d.partition_id = pid and d.seq = at_seq;
    if queen.entry(s.tx, o) is null then
        update queen.dedup d set given = d.given - int4multirange(int4range(s.base_idx + o - 1, s.base_idx + o))
            where d.h = queen.base_key(s.base) and d.partition_id = pid;
    end if;
    if s.n = 1 then
        delete from queen.segments g where g.partition_id = pid and g.last_seq = at_seq;
    elsif o = s.n then
        update queen.segments g set last_seq = at_seq - 1, n = o - 1, tx = queen.slice(s.tx, 1, o - 1), data = queen.slice(s.data, 1, o - 1),
            trace_ids = queen.slice(s.trace_ids, 1, o - 1), subs = queen.slice(s.subs, 1, o - 1), enc = left(s.enc, o - 1)
            where g.partition_id = pid and g.last_seq = at_seq;
    else
        update queen.segments g set n = s.n - o, base_idx = s.base_idx + o, tx = queen.slice(s.tx, o + 1, s.n - o),
            data = queen.slice(s.data, o + 1, s.n - o), trace_ids = queen.slice(s.trace_ids, o + 1, s.n - o),
            subs = queen.slice(s.subs, o + 1, s.n - o), enc = substr(s.enc, o + 1)
            where g.partition_id = pid and g.last_seq = s.last_seq;
        insert into queen.segments (partition_id, last_seq, created_at, n, base_idx, base, tx, data, trace_ids, subs, enc)
        select pid, at_seq - 1, s.created_at, o - 1, s.base_idx, s.base, queen.slice(s.tx, 1, o - 1), queen.slice(s.data, 1, o - 1),
               queen.slice(s.trace_ids, 1, o - 1), queen.slice(s.subs, 1, o - 1), left(s.enc, o - 1)
            where o > 1;
    end if;
    select max(g.last_seq) into before from queen.segments g where g.partition_id = pid and g.last_seq < at_seq;
    update queen.partition_consumers c set lease_to = before
        where c.partition_id = pid and c.lease_to = at_seq and before > c.acked_seq;
    update queen.partition_consumers c set last_lease_id = c.lease_id, last_lease_to = c.acked_seq, lapsed_lease_id = c.lease_id,
        lease_id = null, lease_to = null, lease_expires_at = null, ready_at = clock_timestamp()
        where c.partition_id = pid and c.lease_to = at_seq;
    -- a cursor that waits to try this message again has nothing to wait for
    update queen.partition_consumers c set retries = nullif(c.retries - at_seq::text, '{}'),
        ready_at = case when c.lease_id is not null or exists (
            select from jsonb_object_keys(c.retries) k where k::bigint > c.acked_seq and k::bigint < at_seq)
            then c.ready_at else least(c.ready_at, clock_timestamp()) end
        where c.partition_id = pid and c.retries ? at_seq::text;
end $$;

-- Lock a partition and its cursors, and find a message in it: NULL when there is no such partition or message.
create or replace function queen.lock_message(uid uuid, transaction_id text, out pid bigint, out seq bigint)
language plpgsql as $$
begin
    select p.partition_id into pid from queen.partitions p where p.uid = lock_message.uid;
    perform 1 from queen.partition_lookup l where l.partition_id = pid for no key update;
    perform 1 from queen.partition_consumers c where c.partition_id = pid order by c.group_id for update;
    seq := queen.locate(pid, transaction_id);
end $$;

-- Delete one message and its dead letters.
create or replace function queen.delete_message_v1(uid uuid, transaction_id text, out deleted boolean, out dead_letters integer)
language plpgsql as $$
declare
    m record;
begin
    m := queen.lock_message(uid, transaction_id);
    deleted := m.seq is not null;
    if deleted then
        perform queen.remove_message(m.pid, m.seq);
        insert into queen.retention_history (kind, queue_name, partition_name, messages, detail)
        select 'deleted', q.name, p.name, 1, format('transactionId %s', delete_message_v1.transaction_id)
            from queen.partitions p join queen.queues q using (queue_id) where p.partition_id = m.pid;
    end if;
    delete from queen.dead_letter_queue d
        where d.partition_uid = delete_message_v1.uid and d.transaction_id = delete_message_v1.transaction_id;
    get diagnostics dead_letters = row_count;
end $$;

-- Dead-letter one message by hand: afterwards the group has its dead letter and does not get the message (again).
--   copied   the group has consumed it before; only the copy is made
--   skipped  it is the next message of the group: the cursor steps over it, other groups are not touched
--   removed  messages before it are still open, so no cursor can skip it; no other group needs it, so it is deleted
-- When other groups have yet to consume it, the last is not possible for one group alone (QM011); group_name NULL dead-letters it
-- for every group that needs it, and removes it. A group that is not known counts as one that has consumed nothing.
create or replace function queen.dead_letter_message_v1(uid uuid, transaction_id text, group_name text, reason text) returns text
language plpgsql as $$
declare
    m record;
    c record;
    others text[];
begin
    m := queen.lock_message(uid, transaction_id);
    if m.seq is null then
        raise exception 'Message not found' using errcode = 'QM010';
    end if;
    select k.group_id, queen.position_of(m.pid, k.acked_seq, k.start_from) as position, coalesce((k.retries ->> m.seq::text)::integer, 0) as failures
        into c from queen.partition_consumers k join queen.consumer_groups_metadata g using (group_id)
        where k.partition_id = m.pid and g.name = group_name;
    select array_agg(g.name order by g.name) into others
        from queen.partition_consumers k join queen.consumer_groups_metadata g using (group_id)
        where k.partition_id = m.pid and g.name is distinct from group_name
            and queen.position_of(m.pid, k.acked_seq, k.start_from) < m.seq;
    if group_name is null then
        perform queen.keep_dead_letter(m.pid, x, m.seq, reason, 0) from unnest(coalesce(others, '{__QUEUE_MODE__}')) x;
    else
        perform queen.keep_dead_letter(m.pid, group_name, m.seq, reason, coalesce(c.failures, 0));
        if m.seq <= c.position then
            return 'copied';
        end if;
        if m.seq = (select greatest(s.last_seq - s.n, c.position) + 1 from queen.segments s
                    where s.partition_id = m.pid and s.last_seq > c.position order by s.last_seq limit 1)
        then
            perform queen.settle(m.pid, c.group_id, null, jsonb_build_array(jsonb_build_array(m.seq, 'completed', null)), false);
            return 'skipped';
        end if;
        if others is not null then
            raise exception 'the message is not the next one of group %, and other groups have yet to consume it: %', group_name, array_to_string(others, ', ')
                using errcode = 'QM011', detail = array_to_string(others, ', ');
        end if;
    end if;
    perform queen.remove_message(m.pid, m.seq);
    return 'removed';
end $$;

-- Remove every message of a queue, or of one partition of it, and forget their transactionIds. All cursors stand at the end
-- afterwards, and leases end. Dead letters stay. Returns the number of messages removed.
create or replace function queen.clear_v1(queue_name text, partition_name text) returns bigint
language plpgsql as $$
declare
    pids bigint[];
    cleared bigint;
begin
    select array_agg(p.partition_id) into pids from queen.partitions p join queen.queues q using (queue_id)
        where q.name = queue_name and (partition_name is null or p.name = partition_name);
    perform 1 from queen.partition_lookup l where l.partition_id = any (pids) order by l.partition_id for no key update;
    perform 1 from queen.partition_consumers c where c.partition_id = any (pids) order by c.partition_id, c.group_id for update;
    with k as materialized (
        select s.partition_id, h from queen.segments s, unnest(array[queen.base_key(s.base), s.base]) h where s.partition_id = any (pids)
        union all
        select s.partition_id, queen.dedup_key(t.tx)
        from queen.segments s, string_to_table(convert_from(s.tx, 'UTF8'), E'\x1e') t (tx) where s.partition_id = any (pids) and t.tx <> ''
    )
    delete from queen.dedup d using k where d.h = k.h and d.partition_id = k.partition_id;
    with gone as (delete from queen.segments s where s.partition_id = any (pids) returning s.n)
    select coalesce(sum(gone.n), 0) into cleared from gone;
    -- ids of messages that retention removed before are left to its sweep
    perform queen.note_forgettable((select sum(l.trimmed_seq - l.dedup_floor)::bigint from queen.partition_lookup l where l.partition_id = any (pids)));
    update queen.partition_lookup l set trimmed_seq = l.last_seq, trimmed_at = l.last_message_created_at, dedup_floor = l.last_seq
        where l.partition_id = any (pids) and l.trimmed_seq < l.last_seq;
    update queen.partition_consumers c set acked_seq = l.last_seq, ready_at = null, lease_id = null, lease_to = null, lease_expires_at = null,
        last_lease_id = null, retries = null, isolate = false
        from queen.partition_lookup l where l.partition_id = any (pids) and c.partition_id = l.partition_id;
    insert into queen.retention_history (kind, queue_name, partition_name, messages, detail)
        select 'deleted', queue_name, partition_name, cleared, 'cleared by hand' where cleared > 0;
    return cleared;
end $$;
