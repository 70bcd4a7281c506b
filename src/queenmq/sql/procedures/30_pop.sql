-- Pop: win the lease of a partition for a group, and read what it covers.
--
-- ready_at only says when a cursor is worth looking at; whether there is something to deliver is decided here, under the
-- cursor's row lock. So ready_at may be too early, never too late.

drop function if exists queen.dead_letter(bigint, integer, bigint, text, integer);

-- Keep a copy of a message in the dead letter queue, or only note it where the queue has dead letters switched off.
create or replace function queen.dead_letter(pid bigint, gid bigint, at_seq bigint, reason text, failures integer) returns void
language plpgsql as $$
declare
    q record;
begin
    select u.name, u.dead_letter_queue, p.name as partition_name, g.name as consumer_group into q
        from queen.partitions p join queen.queues u using (queue_id), queen.consumer_groups_metadata g
        where p.partition_id = pid and g.group_id = gid;
    if q.dead_letter_queue is false then
        insert into queen.retention_history (kind, queue_name, partition_name, consumer_group, messages, detail)
        select 'discarded', q.name, q.partition_name, q.consumer_group, 1,
               format('message %s, transactionId %s: %s', m.id, m.transaction_id, reason)
        from queen.message_at(pid, at_seq) m;
        return;
    end if;
    perform queen.keep_dead_letter(pid, q.consumer_group, at_seq, reason, failures);
end $$;

-- The retries of messages above a cursor; NULL when there are none.
create or replace function queen.open_retries(retries jsonb, acked bigint) returns jsonb
language sql immutable as $$
    select case when retries is null then null
           else (select jsonb_object_agg(key, value) from jsonb_each(retries) where key::bigint > acked) end
$$;

-- Whether a message has no retry left and has never failed alone, so that it must be delivered alone.
create or replace function queen.is_exhausted(c queen.partition_consumers, q queen.queues, at_seq bigint) returns boolean
language sql immutable as $$
    select c.retries is not null and q.dlq_after_max_retries is not false
        and coalesce((c.retries ->> at_seq::text)::integer, 0) > q.retry_limit
$$;

-- A lease that ran out is a failed attempt at its first message. When that message has no retries left and was alone in
-- the lease, it is the culprit and is dead-lettered; when it was not alone, it is delivered alone next time, so that no
-- message pays for its neighbour.
create or replace function queen.count_expiry(c inout queen.partition_consumers, q queen.queues)
language plpgsql as $$
declare
    head bigint;
    failures integer;
begin
    c.last_lease_id := c.lease_id;
    c.last_lease_to := c.acked_seq;
    c.lapsed_lease_id := c.lease_id;
    c.batch_limit := case when c.retries is not null then (c.batch_limit + 1) / 2 end;
    select greatest(c.acked_seq, s.last_seq - s.n) + 1 into head from queen.segments s
        where s.partition_id = c.partition_id and s.last_seq > c.acked_seq order by s.last_seq limit 1;
    if head is null or head > c.lease_to then
        return;
    end if;
    failures := least(coalesce((c.retries ->> head::text)::integer, 0), 999999999) + 1;
    if failures <= q.retry_limit or q.dlq_after_max_retries is false then
        c.retries := coalesce(c.retries, '{}') || jsonb_build_object(head::text, failures);
    elsif c.lease_to > head then
        c.isolate := true;
    else
        perform queen.dead_letter(c.partition_id, c.group_id, head, 'Lease expired', q.retry_limit);
        c.acked_seq := head;
        c.retries := queen.open_retries(c.retries, head);
        c.isolate := false;
    end if;
end $$;

-- Resolve where a cursor that has never delivered starts: NULL = the beginning, infinity = now, else after that time.
create or replace function queen.start_seq(pid bigint, start timestamptz) returns bigint
language sql stable as $$
    select case when start is null then 0
           when start = 'infinity' then (select last_seq from queen.partition_lookup where partition_id = pid)
           else queen.seq_at(pid, start) end
$$;

-- Why a cursor has nothing to deliver, and when to look again (NULL = after the next push). A partition is declared
-- drained only under its row lock; when a push holds that lock, this does not wait for it: the next pop looks again.
create or replace function queen.nothing_to_deliver(c queen.partition_consumers, q queen.queues, out outcome text, out look_at timestamptz)
language plpgsql as $$
begin
    if q.delayed_processing > 0 then
        select 'delayed', s.created_at + make_interval(secs => q.delayed_processing) into outcome, look_at
            from queen.segments s where s.partition_id = c.partition_id and s.last_seq > c.acked_seq order by s.last_seq limit 1;
        if found then
            return;
        end if;
    end if;
    perform 1 from queen.partition_lookup l where l.partition_id = c.partition_id for share skip locked;
    if not found then
        outcome := 'busy';
        look_at := clock_timestamp();
    elsif exists (select from queen.segments s where s.partition_id = c.partition_id and s.last_seq > c.acked_seq) then
        outcome := 'busy';
        look_at := clock_timestamp();
    else
        outcome := 'drained';
    end if;
end $$;

-- The last segment of a delivery that begins in first_seg and should go up to target, which lies behind it: the one that holds
-- the target, or the one before the gap in which it lies. So the lease ends with a message that is there; otherwise the ack of the
-- last one would not end it. And the last one before most_bytes of payload (NULL = any number) are exceeded.
create or replace function queen.last_segment(pid bigint, first_seg bigint, target bigint, most_bytes bigint) returns bigint
language sql stable as $$
    select coalesce(max(w.last_seq), first_seg) from (
        select y.last_seq, sum(octet_length(y.data)) over (order by y.last_seq) as bytes
        from queen.segments y where y.partition_id = pid and y.last_seq >= first_seg and y.last_seq <= coalesce((
            select case when x.last_seq - x.n < target then x.last_seq end from queen.segments x
            where x.partition_id = pid and x.last_seq >= target order by x.last_seq limit 1), target)
    ) w where most_bytes is null or w.bytes <= most_bytes
$$;

drop function if exists queen.claim(queen.partition_consumers, queen.partition_lookup, queen.queues, integer, uuid, boolean, timestamptz);

-- Decide what a locked cursor delivers and write the decision. outcome: claimed, or why there is nothing.
-- On claimed, the messages (from_seq, to_seq] are delivered, from the segments up to seg_to, which have so many bytes of payload;
-- until is the end of the lease. Otherwise until is when to look again. most_bytes: see last_segment.
create or replace function queen.claim(
    c queen.partition_consumers, l queen.partition_lookup, q queen.queues, want integer, most_bytes bigint, lease uuid, auto_ack boolean,
    start timestamptz, out outcome text, out got integer, out from_seq bigint, out to_seq bigint, out seg_to bigint, out bytes bigint,
    out until timestamptz, out attempt integer
)
language plpgsql as $$
declare
    t timestamptz := clock_timestamp();
    visible bigint;
    below bigint;
    alone boolean;
    wish integer := want;
    s record;
begin
    if c.lease_id is not null then
        c := queen.count_expiry(c, q);
    end if;
    got := 0;
    bytes := 0;
    if c.start_from is not null then
        start := case when c.start_from <> 'infinity' then c.start_from when start is not null then queen.decided_start(c, q, start) end;
        c.start_from := case when start > t and start < 'infinity' then start end;
        c.acked_seq := queen.start_seq(c.partition_id, start);
    end if;
    if q.ttl > 0 then
        c.acked_seq := greatest(c.acked_seq, queen.seq_at(c.partition_id, t - make_interval(secs => q.ttl)));
    end if;
    if q.delayed_processing > 0 then
        visible := queen.seq_at(c.partition_id, t - make_interval(secs => q.delayed_processing));
    end if;
    if c.isolate then
        want := 1;
    elsif c.retries is not null and not auto_ack then
        want := least(want, c.batch_limit);
    end if;
    from_seq := c.acked_seq;
    if q.window_buffer > 0 then
        select k.* into l from queen.partition_lookup k where k.partition_id = c.partition_id;
    end if;
    if c.start_from is not null then
        outcome := 'not_started';
        until := c.start_from;
    elsif q.window_buffer > 0 and l.last_seq > c.acked_seq
        and l.last_message_created_at + make_interval(secs => q.window_buffer) > t
    then
        outcome := 'window';
        until := l.last_message_created_at + make_interval(secs => q.window_buffer);
    else
        for s in select g.last_seq, g.n, octet_length(g.data) as bytes from queen.segments g
            where g.partition_id = c.partition_id and g.last_seq > c.acked_seq order by g.last_seq limit want
        loop
            exit when s.last_seq > visible or (got > 0 and bytes + s.bytes > most_bytes);
            bytes := bytes + s.bytes;
            below := greatest(c.acked_seq, s.last_seq - s.n);
            if got = 0 then
                attempt := coalesce((c.retries ->> (below + 1)::text)::integer, 0) + 1;
                alone := not auto_ack and queen.is_exhausted(c, q, below + 1);
                want := case when alone then 1 else want end;
            end if;
            to_seq := least(s.last_seq, below + want - got);
            got := got + (to_seq - below)::integer;
            seg_to := s.last_seq;
            exit when got >= want;
        end loop;
    end if;
    if got > 0 then
        got := case when alone then wish else got end;  -- nothing else may come with it
        outcome := 'claimed';
        until := t + make_interval(secs => case when q.lease_time = 0 then 60 else q.lease_time end);
    elsif outcome is null then
        select x.outcome, x.look_at into outcome, until from queen.nothing_to_deliver(c, q) x;
    end if;
    if outcome = 'claimed' and not auto_ack then
        update queen.partition_consumers k set acked_seq = c.acked_seq, ready_at = until, lease_id = lease, lease_to = to_seq,
            lease_expires_at = until, last_lease_id = c.last_lease_id, last_lease_to = c.last_lease_to,
            start_from = null, isolate = c.isolate, retries = c.retries, lapsed_lease_id = c.lapsed_lease_id,
            batch_limit = least(2 * c.batch_limit, 65536)  -- for the next lease; halved again when this one settles nothing
            where k.partition_id = c.partition_id and k.group_id = c.group_id;
        return;
    end if;
    if outcome = 'claimed' then
        -- This is an ack: a pop that does not wait for the disk must do so now.
        perform set_config('synchronous_commit', 'on', true) where current_setting('synchronous_commit') = 'off';
        c.acked_seq := to_seq;
        c.retries := queen.open_retries(c.retries, to_seq);
        c.isolate := false;
        c.consumed := c.consumed + got;
        c.batches := c.batches + 1;
        c.last_consumed_at := t;
        c.ready_at := clock_timestamp();
    else
        c.ready_at := until;
    end if;
    if outcome = 'drained' then
        -- what retention removed is behind the cursor too; the partition's row is locked, so this is its last message
        select greatest(c.acked_seq, k.last_seq) into c.acked_seq
            from queen.partition_lookup k where k.partition_id = c.partition_id;
    end if;
    update queen.partition_consumers k set acked_seq = c.acked_seq, ready_at = c.ready_at, lease_id = null, lease_to = null,
        lease_expires_at = null, last_lease_id = c.last_lease_id, last_lease_to = c.last_lease_to, start_from = c.start_from,
        last_consumed_at = c.last_consumed_at, consumed = c.consumed, batches = c.batches, isolate = c.isolate, retries = c.retries,
        lapsed_lease_id = c.lapsed_lease_id
        where k.partition_id = c.partition_id and k.group_id = c.group_id;
end $$;

drop function if exists queen.next_ready(integer[], bigint);

-- When the first cursor of these groups (on one partition, or on any) is worth a look; NULL = after a push.
create or replace function queen.next_ready(gids bigint[], pid bigint) returns timestamptz
language plpgsql stable as $$
declare
    first timestamptz;
begin
    if pid is null then
        select min(r.ready_at) into first from unnest(gids) g cross join lateral (
            select c.ready_at from queen.partition_consumers c
            where c.group_id = g and c.ready_at is not null order by c.ready_at limit 1) r;
    else
        select min(c.ready_at) into first from queen.partition_consumers c where c.partition_id = pid and c.group_id = any (gids);
    end if;
    return first;
end $$;

drop function if exists queen.pop_one_by_one(integer[], integer[], integer[], integer[], bigint[], integer[], integer[], uuid[], boolean[], timestamptz[]);
drop function if exists queen.pop_one_by_one(integer[], integer[], integer[], integer[], bigint[], integer[], integer[], uuid[], boolean[], timestamptz[],
    bigint);

drop function if exists queen.pop_one_by_one(integer[], integer[], integer[], integer[], bigint[], integer[], integer[], uuid[], boolean[], timestamptz[], bigint, integer[]);

-- Answer these requests one after another, with every rule. Parameters and rows as in pop_v2.
create or replace function queen.pop_one_by_one(
    requests integer[], req_groups bigint[], req_group_tag integer[], req_from integer[], req_to integer[], req_partition bigint[],
    req_tag integer[], req_batch integer[], req_max integer[], req_lease uuid[], req_hold integer[], req_auto boolean[],
    req_start timestamptz[], req_age double precision[], most_bytes bigint
) returns table (
    request integer, partition_id bigint, partition_uid uuid, partition_name text, queue_id bigint, group_id bigint,
    from_seq bigint, to_seq bigint, lease_expires_at timestamptz, attempt integer,
    last_seq bigint, n integer, base uuid, base_idx integer, created_at timestamptz,
    tx bytea, data bytea, trace_ids bytea, subs bytea, enc text, reason text, ready_at timestamptz
)
language plpgsql as $$
#variable_conflict use_column
declare
    q queen.queues;
    cursors refcursor;
    k record;
    d record;
    t timestamptz;
    gid bigint;
    gtag integer;
    start timestamptz;
    wanted integer;
    room bigint;
    claimed integer;
    seen integer;
    visited bigint[];             -- cursors that were looked at and are ready at t all the same
    known boolean;
    r integer;
    empty_group bigint;          -- a group of which a request has just found nothing: the next need not look
    empty_tag integer;
    empty_reason text;
    empty_ready timestamptz;
begin
    foreach r in array requests loop
        gid := req_groups[req_from[r]];
        if req_partition[r] is null and req_from[r] = req_to[r] and gid = empty_group
            and req_group_tag[req_from[r]] is not distinct from empty_tag
        then
            request := r;
            reason := empty_reason;
            created_at := clock_timestamp();
            ready_at := empty_ready;
            return next;
            continue;
        end if;
        wanted := req_batch[r];
        room := most_bytes;
        claimed := 0;
        known := false;
        start := case when req_start[r] = 'infinity' then coalesce(clock_timestamp() - make_interval(secs => req_age[r]), req_start[r])
                      else req_start[r] end;
        for place in req_from[r]..req_to[r] loop
            exit when wanted <= 0 or room <= 0 or claimed >= req_max[r];
            gid := req_groups[place];
            gtag := req_group_tag[place];
            select u.* into q from queen.consumer_groups_metadata m join queen.queues u using (queue_id)
                where m.group_id = gid and m.registered and (m.tag <> gtag) is not true;
            continue when not found;
            known := true;
            q.lease_time := least(case when q.lease_time = 0 then 60 else q.lease_time end, req_hold[r]);
            t := clock_timestamp();
            visited := '{}';
            -- A cursor that was looked at is no longer ready at t. When the clock has stepped back it may be, and is left out: it would be
            -- looked at for ever, or its new lease taken for one that ran out.
            loop
                if req_partition[r] is null then
                    open cursors for select c, l, p.uid, p.name from queen.partition_consumers c
                        join queen.partition_lookup l on l.partition_id = c.partition_id
                        join queen.partitions p on p.partition_id = c.partition_id
                        where c.group_id = gid and c.ready_at <= t and c.partition_id <> all (visited)
                        order by c.ready_at limit req_max[r] - claimed for update of c skip locked;
                else
                    open cursors for select c, l, p.uid, p.name from queen.partition_consumers c
                        join queen.partition_lookup l on l.partition_id = c.partition_id
                        join queen.partitions p on p.partition_id = c.partition_id
                        where c.partition_id = req_partition[r] and c.group_id = gid and (l.tag <> req_tag[r]) is not true
                        and (c.ready_at <= t or c.start_from = 'infinity' or (c.ready_at is null and l.last_seq > c.acked_seq)) for update of c skip locked;
                end if;
                seen := 0;
                loop
                    fetch cursors into k;
                    exit when not found;
                    seen := seen + 1;
                    -- a message that must come alone ends a pop that has something, and is all of a pop that has nothing
                    if claimed > 0 and not req_auto[r] and queen.is_exhausted(k.c, q, (k.c).acked_seq + 1) then
                        wanted := 0;
                        exit;
                    end if;
                    d := queen.claim(k.c, k.l, q, wanted, room, req_lease[r], req_auto[r], start);
                    if least(d.until, clock_timestamp()) <= t then
                        visited := visited || (k.c).partition_id;
                    end if;
                    continue when d.outcome <> 'claimed';
                    claimed := claimed + 1;
                    wanted := wanted - d.got;
                    room := room - d.bytes;
                    return query select r, s.partition_id, k.uid, k.name, q.queue_id::bigint, gid, d.from_seq, d.to_seq, d.until, d.attempt,
                        s.last_seq, s.n, s.base, s.base_idx, s.created_at, s.tx, s.data, s.trace_ids, s.subs, s.enc,
                        null::text, null::timestamptz
                        from queen.segments s where s.partition_id = (k.c).partition_id
                        and s.last_seq > d.from_seq and s.last_seq <= d.seg_to order by s.last_seq;
                    exit when wanted <= 0 or room <= 0;
                end loop;
                close cursors;
                exit when seen = 0 or wanted <= 0 or room <= 0 or claimed >= req_max[r] or req_partition[r] is not null;
            end loop;
        end loop;
        if claimed = 0 then
            request := r;
            reason := case
                when not known then 'unknown_group'
                when req_partition[r] is not null and not exists (
                    select from queen.partition_consumers c join queen.partition_lookup l on l.partition_id = c.partition_id
                    where c.partition_id = req_partition[r] and c.group_id = any (req_groups[req_from[r]:req_to[r]])
                    and (l.tag <> req_tag[r]) is not true) then 'unknown_partition'
                else 'empty' end;
            created_at := clock_timestamp();
            ready_at := case when reason <> 'unknown_partition' then queen.next_ready(req_groups[req_from[r]:req_to[r]], req_partition[r]) end;
            return next;
            if req_partition[r] is null and req_from[r] = req_to[r] then
                empty_group := req_groups[req_from[r]];
                empty_tag := req_group_tag[req_from[r]];
                empty_reason := reason;
                empty_ready := ready_at;
            end if;
        end if;
    end loop;
end $$;

drop function if exists queen.plain_pops(integer[], integer[], integer[], bigint[], integer[], integer[], uuid[], boolean[]);
drop function if exists queen.claim_plain(boolean, integer[], integer[], integer[], bigint[], integer[], integer[], uuid[], boolean[]);
drop function if exists queen.claim_plain(boolean, integer[], integer[], integer[], bigint[], integer[], integer[], uuid[], boolean[], bigint);
drop function if exists queen.lease_plain(integer[], bigint[], integer[], integer[], uuid[], interval[]);

drop function if exists queen.claim_plain(boolean, integer[], integer[], integer[], bigint[], integer[], integer[], uuid[], boolean[], bigint, integer[]);

-- Claim for many requests at once. It serves requests of one group and one partition, with a lease, in queues whose options
-- put no condition on a delivery, and takes cursors with nothing special about them: no lease that ran out, no retries, no
-- unresolved start. The others are left to claim.
-- Requests for one partition each (of several for the same one the first), or requests for any: of each group as many cursors
-- as it has requests, least recently served first.
-- exhausted: the requests that are left of groups of which every ready cursor was taken.
create or replace function queen.claim_plain(
    one_each boolean, req_groups bigint[], req_group_tag integer[], req_from integer[], req_to integer[], req_partition bigint[],
    req_tag integer[], req_batch integer[], req_max integer[], req_lease uuid[], req_hold integer[], req_auto boolean[], most_bytes bigint,
    out requests integer[], out pids bigint[], out gids bigint[], out froms bigint[], out tos bigint[], out seg_tos bigint[],
    out untils timestamptz[], out exhausted integer[]
)
language plpgsql as $$
declare
    t timestamptz := clock_timestamp();
begin
    with w as materialized (
        select r.request::integer, m.group_id as gid, r.pid, r.batch, r.lease, r.tag,
               t + make_interval(secs => least(case when q.lease_time = 0 then 60 else q.lease_time end, r.hold)) as until,
               row_number() over (partition by m.group_id, r.pid order by r.request) as place
        from unnest(req_from, req_to, req_partition, req_batch, req_max, req_lease, req_hold, req_auto, req_tag)
            with ordinality r (first, last, pid, batch, most, lease, hold, auto, tag, request)
        join queen.consumer_groups_metadata m on m.group_id = req_groups[r.first] and m.registered
            and (m.tag <> req_group_tag[r.first]) is not true
        join queen.queues q on q.queue_id = m.queue_id
        where (r.pid is not null) = one_each and r.first = r.last and (r.most = 1 or one_each) and not r.auto
        and q.delayed_processing = 0 and q.window_buffer = 0 and coalesce(q.ttl, 0) = 0
    ), wanted as materialized (
        select w.gid, w.pid, count(*) as requests from w group by w.gid, w.pid
    ), k as materialized (
        select g.gid, g.pid, c.*, row_number() over (partition by g.gid, g.pid order by c.ready_at) as place
        from wanted g cross join lateral (
            select c.partition_id, c.acked_seq, c.ready_at,
                   c.lease_id is null and c.start_from is null and c.retries is null and not c.isolate as plain
            from queen.partition_consumers c where not one_each and c.group_id = g.gid and c.ready_at <= t
            order by c.ready_at limit g.requests for update skip locked) c
        where not one_each
        union all
        select g.gid, g.pid, c.*, 1 as place
        from wanted g cross join lateral (
            select c.partition_id, c.acked_seq, c.ready_at,
                   c.lease_id is null and c.start_from is null and c.retries is null and not c.isolate as plain
            -- written so that only the primary key can serve it: the index on ready_at would read every ready cursor of the group
            from queen.partition_consumers c
            where c.partition_id = g.pid and c.group_id = g.gid and coalesce(c.ready_at, 'infinity') <= t
            for update skip locked) c
        where one_each
    ), chosen as materialized (
        select w.request, w.lease, w.until, w.gid, k.partition_id, k.acked_seq, u.seg_to, least(u.seg_to, e.target) as upto
        from w join k on k.gid = w.gid and k.pid is not distinct from w.pid and k.place = w.place
        join queen.partition_lookup l on l.partition_id = k.partition_id and l.last_seq > k.acked_seq
        cross join lateral (
            select z.last_seq, z.last_seq - z.n as below from queen.segments z
            where z.partition_id = k.partition_id and z.last_seq > k.acked_seq order by z.last_seq limit 1) s
        cross join lateral (select least(greatest(k.acked_seq, s.below) + w.batch, l.last_seq) as target) e
        cross join lateral (select case when s.last_seq >= e.target then s.last_seq
            else queen.last_segment(k.partition_id, s.last_seq, e.target, most_bytes) end as seg_to) u
        where k.plain and (l.tag <> w.tag) is not true
    ), leased as (
        update queen.partition_consumers c set lease_id = x.lease, lease_to = x.upto, lease_expires_at = x.until, ready_at = x.until
        from chosen x where c.partition_id = x.partition_id and c.group_id = x.gid
        returning x.request, c.partition_id, x.gid, x.acked_seq, x.upto, x.seg_to, x.until
    )
    select array_agg(u.request), array_agg(u.partition_id), array_agg(u.gid), array_agg(u.acked_seq), array_agg(u.upto),
           array_agg(u.seg_to), array_agg(u.until),
           (select array_agg(w.request) from wanted g join w on w.gid = g.gid where not one_each
            and (select count(*) from k where k.gid = g.gid) < g.requests
            and (select count(*) from k where k.gid = g.gid) = (select count(*) from chosen x where x.gid = g.gid)
            and w.place > (select count(*) from k where k.gid = g.gid))
        into requests, pids, gids, froms, tos, seg_tos, untils, exhausted from leased u;
end $$;

drop function if exists queen.pop_v1(integer[], integer[], integer[], bigint[], integer[], integer[], uuid[], boolean[], timestamptz[]);
drop function if exists queen.pop_v1(integer[], integer[], integer[], bigint[], integer[], integer[], uuid[], boolean[], timestamptz[], bigint);

-- Answer many pops in one call. Request r takes from the groups req_groups[req_from[r] .. req_to[r]], in that order:
-- from partition req_partition[r] when it is given, else from any, least recently served first, up to req_max[r]
-- partitions and req_batch[r] messages, and no more than most_bytes of payload (NULL = any number) unless one segment has more.
-- req_group_tag, beside req_groups, and req_tag, beside req_partition: the group_tag and partition_tag of the names for which the caller
-- uses these numbers; those of others are unknown. NULL = not checked.
-- req_hold: a lease lasts no longer than these seconds, whatever its queue says; NULL = as long as that says.
-- req_start: see start_seq, used where the group's subscription is undecided. With a req_age, infinity means so many seconds ago.
-- One row per segment delivered; for a request with nothing, one row with partition_id NULL, the reason, and when the
-- earliest cursor of its groups becomes ready, beside the database's own time in created_at.
-- Plain requests are matched with cursors all at once; what is left, and everything special, is answered one by one.
create or replace function queen.pop_v2(
    req_groups bigint[], req_group_tag integer[], req_from integer[], req_to integer[], req_partition bigint[], req_tag integer[],
    req_batch integer[], req_max integer[], req_lease uuid[], req_hold integer[], req_auto boolean[], req_start timestamptz[],
    req_age double precision[], most_bytes bigint
) returns table (
    request integer, partition_id bigint, partition_uid uuid, partition_name text, queue_id bigint, group_id bigint,
    from_seq bigint, to_seq bigint, lease_expires_at timestamptz, attempt integer,
    last_seq bigint, n integer, base uuid, base_idx integer, created_at timestamptz,
    tx bytea, data bytea, trace_ids bytea, subs bytea, enc text, reason text, ready_at timestamptz
)
language plpgsql as $$
#variable_conflict use_column
declare
    d record;
    answered integer[] := '{}';
    one_each boolean;
begin
    foreach one_each in array array[true, false] loop
        continue when (one_each and cardinality(array_remove(req_partition, null)) = 0)
            or (not one_each and array_position(req_partition, null) is null);
        d := queen.claim_plain(one_each, req_groups, req_group_tag, req_from, req_to, req_partition, req_tag, req_batch, req_max,
            req_lease, req_hold, req_auto, most_bytes);
        if d.requests is not null then
            answered := answered || d.requests;
            return query
                select u.request, s.partition_id, p.uid, p.name, p.queue_id::bigint, u.gid, u.from_seq, u.to_seq, u.until, 1,
                       s.last_seq, s.n, s.base, s.base_idx, s.created_at, s.tx, s.data, s.trace_ids, s.subs, s.enc,
                       null::text, null::timestamptz
                from unnest(d.requests, d.pids, d.gids, d.froms, d.tos, d.seg_tos, d.untils) u (request, pid, gid, from_seq, to_seq, seg_to, until)
                join queen.partitions p on p.partition_id = u.pid
                cross join lateral (
                    select z.* from queen.segments z where z.partition_id = u.pid and z.last_seq > u.from_seq and z.last_seq <= u.seg_to
                    order by z.last_seq) s
                order by u.request, s.last_seq;
        end if;
        if d.exhausted is not null then
            answered := answered || d.exhausted;
            return query
                select r, null::bigint, null::uuid, null::text, null::bigint, null::bigint, null::bigint, null::bigint, null::timestamptz,
                       null::integer, null::bigint, null::integer, null::uuid, null::integer, clock_timestamp(), null::bytea, null::bytea,
                       null::bytea, null::bytea, null::text, 'empty',
                       (select c.ready_at from queen.partition_consumers c
                        where c.group_id = req_groups[req_from[r]] and c.ready_at is not null order by c.ready_at limit 1)
                from unnest(d.exhausted) r;
        end if;
    end loop;
    if cardinality(answered) < coalesce(cardinality(req_from), 0) then
        return query select * from queen.pop_one_by_one(
            (select array_agg(r order by r) from generate_series(1, cardinality(req_from)) r where r <> all (answered)),
            req_groups, req_group_tag, req_from, req_to, req_partition, req_tag, req_batch, req_max, req_lease, req_hold, req_auto,
            req_start, req_age, most_bytes);
    end if;
end $$;
