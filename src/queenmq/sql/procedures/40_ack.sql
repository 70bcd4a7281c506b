-- Ack, renew, release.

-- What these replace has other parameters or columns, which create or replace cannot change.
drop function if exists queen.ack_v1(bigint[], integer[], uuid[], bigint[], jsonb[]);
drop function if exists queen.ack_v1(bigint[], integer[], uuid[], bigint[], jsonb[], boolean);
drop function if exists queen.renew_v1(uuid, integer);
drop function if exists queen.release_v1(uuid, bigint);

-- Whether a group has given up a message: it is a dead letter, or the queue keeps none and its discarding was noted.
create or replace function queen.was_given_up(pid bigint, gid bigint, at_seq bigint, q queen.queues) returns boolean
language sql stable as $$
    select case when q.dead_letter_queue is false then exists (
        select from queen.message_at(pid, at_seq) m
        join queen.retention_history h on h.at >= m.created_at and h.kind = 'discarded' and h.queue_name = q.name
        join queen.partitions p on p.partition_id = pid and p.name = h.partition_name
        join queen.consumer_groups_metadata g on g.group_id = gid and g.name = h.consumer_group
        where starts_with(h.detail, format('message %s,', m.id)))
    else exists (
        select from queen.dead_letter_queue x join queen.consumer_groups_metadata g on g.name = x.consumer_group
        where g.group_id = gid and x.partition_id = pid and x.seq = at_seq) end
$$;

drop function if exists queen.settle(bigint, integer, uuid, jsonb, boolean);

-- Settle the messages of one lease one by one. The caller has locked the partition's row against pushes, and the cursor.
-- verdicts: [[seq, status, error, crowd], ...] with ascending seq and status completed, failed, retry or dlq; crowd is how
-- many messages of the lease the same request fails, on all partitions (NULL, from earlier versions: those of this call).
-- A completed or dead-lettered message settles everything before it. The first message that is to come again holds the
-- cursor: nothing behind it is settled. Without a lease nothing is fenced; but while there is no lease on the cursor,
-- nothing behind a message that still waits to come again (a key of retries) is settled either.
-- A message that fails among others is never dead-lettered for that, because one of the others may be the reason: the
-- cursor's next lease covers half as many messages (batch_limit), and one that is exhausted comes alone (see claim).
-- failed, retry and dlq are refused for a message that is settled already, unless it was given up.
-- replay: the same verdicts may have been applied before, and have ended the lease.
-- Result: {"outcome", "acked", "released", "ready", "items": [{"seq", "ok", "error", "dlq"}, ...]}.
create or replace function queen.settle(pid bigint, gid bigint, lease uuid, verdicts jsonb, replay boolean) returns jsonb
language plpgsql as $$
declare
    t timestamptz;
    c queen.partition_consumers;
    q queen.queues;
    newest bigint;
    top bigint;
    start bigint;
    held boolean := false;
    wait integer := 0;
    fenced boolean;
    loose boolean;
    blocked boolean;
    failures integer;
    own integer;
    crowd integer;
    exhausted boolean;
    at_seq bigint;
    v jsonb;
    problem text;
    dead boolean;
    items jsonb[] := '{}';
    -- what is to come again, and how often each has failed: added to the retries at the end, as each addition copies them
    again_seqs bigint[] := '{}';
    again_failures integer[] := '{}';
begin
    select l.last_seq into newest from queen.partition_lookup l where l.partition_id = pid;
    select k.* into c from queen.partition_consumers k where k.partition_id = pid and k.group_id = gid;
    if not found then
        return jsonb_build_object('outcome', 'unknown');
    end if;
    select u.* into q from queen.queues u where u.queue_id = c.queue_id;
    t := clock_timestamp();
    fenced := lease is not null and (c.lease_id is distinct from lease or c.lease_expires_at <= t);
    loose := lease is null and (c.lease_id is null or c.lease_expires_at <= t);
    -- A lease that is over may repeat what it settled itself. One that we know nothing of may not even do that.
    top := case
        when lease is null then newest
        when not fenced then c.lease_to
        when lease = c.lease_id then c.acked_seq
        when lease = c.last_lease_id then least(c.last_lease_to, c.acked_seq)
        else -1 end;
    if c.start_from is not null and not fenced then
        c.acked_seq := queen.start_seq(pid, nullif(c.start_from, 'infinity'));
    end if;
    start := c.acked_seq;
    select count(distinct x -> 0), greatest(count(distinct x -> 0), max((x ->> 3)::integer)) into own, crowd
        from jsonb_array_elements(verdicts) x
        where x ->> 1 = 'failed' and (x ->> 0)::bigint > start and (x ->> 0)::bigint <= top;
    for v in select * from jsonb_array_elements(verdicts) loop
        at_seq := (v ->> 0)::bigint;
        problem := null;
        dead := false;
        blocked := held or (loose and exists (
            select from jsonb_object_keys(c.retries) k where k::bigint > c.acked_seq and k::bigint < at_seq));
        if replay and fenced and lease = c.last_lease_id and c.lapsed_lease_id is distinct from lease
            and v ->> 1 in ('failed', 'retry') and at_seq > c.last_lease_to
            and (at_seq <= c.acked_seq or c.retries ? at_seq::text)
        then
            null;  -- this verdict has ended the lease
        elsif at_seq > top then
            problem := 'Invalid or expired lease';
        elsif at_seq <= c.acked_seq then
            if v ->> 1 in ('failed', 'dlq') and queen.was_given_up(pid, gid, at_seq, q) then
                dead := q.dead_letter_queue is not false;
            elsif v ->> 1 <> 'completed' then
                problem := 'Not applied: this message or a later one of its partition is acknowledged already';
            end if;
        elsif blocked and v ->> 1 in ('completed', 'dlq') then
            problem := 'Not acknowledged: an earlier message of this partition is to be delivered again';
        elsif v ->> 1 = 'completed' then
            c.acked_seq := at_seq;
        elsif v ->> 1 = 'retry' then
            if again_seqs[cardinality(again_seqs)] is distinct from at_seq then
                again_seqs := array_append(again_seqs, at_seq);
                again_failures := array_append(again_failures, coalesce((c.retries ->> at_seq::text)::integer, 0));
            end if;
            held := true;
        else
            failures := least(coalesce((c.retries ->> at_seq::text)::integer, 0), 999999999) + 1;
            if again_seqs[cardinality(again_seqs)] = at_seq then
                failures := least(again_failures[cardinality(again_failures)], 999999999) + 1;
            end if;
            exhausted := failures > q.retry_limit and q.dlq_after_max_retries is not false;
            if not blocked and (v ->> 1 = 'dlq' or (exhausted and crowd = 1)) then
                perform queen.dead_letter(pid, gid, at_seq, coalesce(nullif(v ->> 2, ''),
                    case when v ->> 1 = 'dlq' then 'Moved to the dead letter queue by the consumer' else 'Retries exhausted' end), failures - 1);
                c.acked_seq := at_seq;
                dead := q.dead_letter_queue is not false;
            else
                again_seqs := array_append(again_seqs, at_seq);
                again_failures := array_append(again_failures, case when exhausted then least(failures, q.retry_limit + 1) else failures end);
                wait := case when held then wait else q.retry_delay end;
                held := true;
            end if;
        end if;
        items := array_append(items, jsonb_build_object('seq', at_seq, 'ok', problem is null, 'error', problem, 'dlq', dead));
    end loop;
    if not fenced then
        if cardinality(again_seqs) > 0 then
            c.retries := queen.open_retries(c.retries, c.acked_seq);
            c.batch_limit := case when crowd > 1 then greatest(1, own / 2) when c.retries is not null then (c.batch_limit + 1) / 2 end;
            c.retries := coalesce(c.retries, '{}') || (
                select jsonb_object_agg(a.seq, a.failures order by a.ord)
                from unnest(again_seqs, again_failures) with ordinality a (seq, failures, ord));
        end if;
        perform queen.write_cursor(c, start, newest, held, wait);
    end if;
    return jsonb_build_object('outcome', 'settled', 'acked', c.acked_seq,
        'released', held or c.lease_id is null or (not fenced and c.acked_seq >= c.lease_to), 'items', to_jsonb(items));
end $$;

-- Write a settled cursor: progress, the end of its lease, and when it is ready again.
create or replace function queen.write_cursor(c queen.partition_consumers, start bigint, newest bigint, held boolean, wait_ms integer) returns void
language plpgsql as $$
declare
    t timestamptz := clock_timestamp();
    ended boolean := held or coalesce(c.acked_seq >= c.lease_to, false);
begin
    if c.acked_seq > start then
        c.isolate := false;
        c.retries := queen.open_retries(c.retries, c.acked_seq);
        c.batch_limit := case when c.retries is not null then c.batch_limit end;
        c.last_consumed_at := t;
        c.consumed := c.consumed + c.acked_seq - start;
        c.start_from := null;
    end if;
    if ended and c.lease_id is not null then
        c.last_lease_id := c.lease_id;
        c.last_lease_to := c.acked_seq;
        c.lease_id := null;
        c.lease_to := null;
        c.lease_expires_at := null;
        c.batches := c.batches + 1;
    end if;
    if held then
        c.ready_at := t + wait_ms * interval '1 ms';
    elsif c.lease_id is null and (ended or c.acked_seq > start) then
        c.ready_at := case when newest > c.acked_seq then t end;
    end if;
    update queen.partition_consumers k set acked_seq = c.acked_seq, ready_at = c.ready_at, lease_id = c.lease_id, lease_to = c.lease_to,
        lease_expires_at = c.lease_expires_at, last_lease_id = c.last_lease_id, last_lease_to = c.last_lease_to, start_from = c.start_from,
        retries = c.retries, isolate = c.isolate, batch_limit = c.batch_limit, last_consumed_at = c.last_consumed_at,
        consumed = c.consumed, batches = c.batches
        where k.partition_id = c.partition_id and k.group_id = c.group_id;
end $$;

-- Settle many leases in one call, each by itself (the statement ack_plain does the common case for all at once). Run i
-- acknowledges everything up to uptos[i] under leases[i], or, when verdicts[i] is given, message by message (see settle).
-- A (partition, group) stands in one run only.
create or replace function queen.ack_v2(pids bigint[], gids bigint[], leases uuid[], uptos bigint[], verdicts jsonb[], replay boolean)
returns table (run integer, result jsonb, released boolean)
language plpgsql as $$
#variable_conflict use_column
declare
    r record;
begin
    -- All rows of the call are locked here, in order. The partition's row is read locked: only then does "nothing newer"
    -- mean drained.
    perform 1 from unnest(pids, gids) a (pid, gid)
        join queen.partition_lookup l on l.partition_id = a.pid
        join queen.partition_consumers c on c.partition_id = a.pid and c.group_id = a.gid
        order by a.pid, a.gid
        for share of l for update of c;
    for r in
        select a.* from unnest(pids, gids, leases, uptos, verdicts) with ordinality a (pid, gid, lease, upto, verdict, run)
        order by a.pid, a.gid
    loop
        run := r.run;
        result := queen.settle(r.pid, r.gid, r.lease, coalesce(r.verdict, jsonb_build_array(jsonb_build_array(r.upto, 'completed', null))), replay);
        released := (result ->> 'released')::boolean;
        return next;
    end loop;
end $$;

-- Extend every partition held by these leases, each by its own seconds. renewed = 0: known tells an expired lease from an
-- unknown one.
create or replace function queen.renew_v1(leases uuid[], seconds integer[])
returns table (lease uuid, renewed integer, known boolean, expires_at timestamptz)
language plpgsql as $$
#variable_conflict use_column
declare
    t timestamptz := clock_timestamp();
begin
    return query
        with wanted as materialized (
            select w.lease, max(w.s) as s from unnest(leases, seconds) w (lease, s) group by w.lease
        ), held as materialized (
            select c.partition_id, c.group_id, c.lease_id, c.lease_expires_at, t + make_interval(secs => w.s) as until
            from wanted w join queen.partition_consumers c on c.lease_id = w.lease
            order by c.partition_id, c.group_id for update of c
        ), extended as (
            update queen.partition_consumers c set
                lease_expires_at = greatest(c.lease_expires_at, h.until), ready_at = greatest(c.lease_expires_at, h.until)
            from held h where c.partition_id = h.partition_id and c.group_id = h.group_id and c.lease_id = h.lease_id and c.lease_expires_at > t
            returning c.lease_id, c.lease_expires_at
        )
        select w.lease, (select count(*)::integer from extended e where e.lease_id = w.lease),
               exists (select from held h where h.lease_id = w.lease),
               (select min(e.lease_expires_at) from extended e where e.lease_id = w.lease)
        from wanted w;
end $$;

-- Give leases back unused: nothing is counted and the messages are available at once.
-- pid NULL: every partition of the leases. Returns the cursors that were freed.
create or replace function queen.release_v2(leases uuid[], pid bigint)
returns table (queue_name text, partition_name text, group_name text)
language plpgsql as $$
begin
    return query
        with held as materialized (
            select c.partition_id, c.group_id from queen.partition_consumers c
            where c.lease_id = any (leases) and (pid is null or c.partition_id = pid) order by c.partition_id, c.group_id for update
        ), freed as (
            update queen.partition_consumers c set lease_id = null, lease_to = null, lease_expires_at = null,
                last_lease_id = c.lease_id, last_lease_to = c.acked_seq, lapsed_lease_id = c.lease_id,
                batch_limit = (c.batch_limit + 1) / 2, ready_at = clock_timestamp()
            from held h where c.partition_id = h.partition_id and c.group_id = h.group_id
            returning c.partition_id, c.group_id
        )
        select q.name, p.name, g.name from freed f
        join queen.partitions p on p.partition_id = f.partition_id
        join queen.queues q on q.queue_id = p.queue_id
        join queen.consumer_groups_metadata g on g.group_id = f.group_id;
end $$;

-- The same for servers of an earlier version, which may run beside this one: how many were freed.
create or replace function queen.release_v1(leases uuid[], pid bigint) returns integer
language sql as $$
    select count(*)::integer from queen.release_v2(leases, pid)
$$;
