-- Consumer groups: registration, subscription, seek.

-- A hash of the names of a group: a caller that takes the number of one group for another is found out by it.
-- queenmq.domain.ids computes the same.
create or replace function queen.group_tag(queue text, group_name text) returns integer
language sql immutable parallel safe as $$
    select ('x' || left(encode(sha256(convert_to(queue || E'\x1f' || group_name, 'UTF8')), 'hex'), 8))::bit(32)::integer
$$;

-- Register a group on a queue, once. mode: all, new or timestamp; NULL leaves it undecided, so that each partition starts as its
-- own first pop says. A group in the mode new or timestamp gets what was created after start; new with infinity gets what is
-- pushed after this call; with an earlier pop of the group that found no such queue, what was pushed after that (awaited_start).
-- Returns no row when the queue does not exist.
-- Every partition's row is read locked while the cursors are made: a push in flight has either committed before, or
-- will see the cursor and wake it.
create or replace function queen.register_group_v2(queue_name text, group_name text, mode text, start timestamptz)
returns table (queue_id bigint, group_id bigint)
language plpgsql as $$
#variable_conflict use_column
declare
    q queen.queues;
    g queen.consumer_groups_metadata;
begin
    select u.* into q from queen.queues u where u.name = queue_name for no key update;
    if not found then
        return;
    end if;
    -- Workers remember the number, and a subscription counts from now on: a crash must not forget them.
    perform set_config('synchronous_commit', 'on', true) where current_setting('synchronous_commit') = 'off';
    select m.* into g from queen.consumer_groups_metadata m where m.queue_id = q.queue_id and m.name = group_name;
    if mode = 'new' and g.subscription_mode is null then
        start := queen.awaited_start(q, group_name, null, start);
    end if;
    if g.group_id is null then
        insert into queen.consumer_groups_metadata (queue_id, name, subscription_mode, subscription_timestamp, registered)
        values (q.queue_id, group_name, mode, queen.subscribed_from(mode, start), false)
        returning * into g;
        perform queen.create_cursors(q.queue_id, g.group_id, mode is not distinct from 'new',
            case when mode is null then 'infinity' when mode <> 'all' then start end);
        perform queen.start_awaited(g, true, start) where mode <> 'all';
    else
        if not g.registered then
            perform queen.create_cursors(q.queue_id, g.group_id, false,
                case when g.subscription_mode is null then 'infinity' else g.subscription_timestamp end);
        end if;
        if g.subscription_mode is null and mode is not null then
            perform queen.decide_subscription(g, mode, start);
        end if;
    end if;
    if mode is not null then
        perform queen.forget_awaited(group_name, queue_name, null);
    end if;
    update queen.consumer_groups_metadata m set registered = true, tag = queen.group_tag(queue_name, group_name)
        where m.group_id = g.group_id and (not m.registered or m.tag is null);
    return query select q.queue_id::bigint, g.group_id::bigint;
end $$;

-- The time that is kept with a subscription.
create or replace function queen.subscribed_from(mode text, start timestamptz) returns timestamptz
language sql volatile as $$
    select case mode when 'new' then least(start, clock_timestamp()) when 'timestamp' then start end
$$;

drop function if exists queen.create_cursors(integer, integer, boolean, timestamptz);

-- Cursors of a group for all partitions of a queue. at_end: behind what was created up to start; otherwise start is left to the
-- first pop (NULL = the beginning).
create or replace function queen.create_cursors(qid bigint, gid bigint, at_end boolean, start timestamptz) returns void
language plpgsql as $$
begin
    update queen.queue_depth d set bound = null where d.queue_id = qid;
    perform 1 from queen.partition_lookup l where l.queue_id = qid order by l.partition_id for share;
    insert into queen.partition_consumers (partition_id, group_id, queue_id, acked_seq, start_from, ready_at)
    select l.partition_id, gid, qid, case when at_end then queen.end_at(l, start) else 0 end, case when not at_end then start end,
           case when l.last_seq > 0 and (not at_end or l.last_message_created_at > start) then clock_timestamp() end
    from queen.partition_lookup l where l.queue_id = qid;
end $$;

-- The last message of a partition as it was at a moment. Mostly that is its last one, and nothing has to be searched.
create or replace function queen.end_at(l queen.partition_lookup, moment timestamptz) returns bigint
language plpgsql stable as $$
begin
    if l.last_message_created_at > moment then
        return queen.seq_at(l.partition_id, moment);
    end if;
    return l.last_seq;
end $$;

-- The first pop from any partition decides for the partitions that no pop has touched yet.
create or replace function queen.decide_subscription(g queen.consumer_groups_metadata, mode text, start timestamptz) returns void
language plpgsql as $$
begin
    update queen.consumer_groups_metadata m set subscription_mode = mode, subscription_timestamp = queen.subscribed_from(mode, start)
        where m.group_id = g.group_id;
    perform 1 from queen.partition_lookup l where l.queue_id = g.queue_id order by l.partition_id for share;
    perform queen.start_awaited(g, false, start) where mode <> 'all';
    with k as materialized (
        select c.partition_id, l from queen.partition_consumers c join queen.partition_lookup l using (partition_id)
        where l.queue_id = g.queue_id and c.group_id = g.group_id and c.start_from = 'infinity'
        order by c.partition_id for update of c
    )
    update queen.partition_consumers c set
        acked_seq = case when mode = 'new' then queen.end_at(k.l, start) else 0 end,
        start_from = case when mode = 'timestamp' then start end,
        ready_at = case when mode <> 'new' then c.ready_at when (k.l).last_message_created_at > start then clock_timestamp() end
        from k where c.partition_id = k.partition_id and c.group_id = g.group_id;
end $$;

-- Move a group on a queue (or on one partition of it): to the end, to the beginning, or after a time. Leases end, and acks
-- of the old position are refused. Returns the number of partitions moved.
create or replace function queen.seek_v1(queue_name text, group_name text, partition_name text, target text, moment timestamptz) returns integer
language plpgsql as $$
declare
    gid bigint;
    qid bigint;
    pids bigint[];
    moved integer;
begin
    select m.group_id, m.queue_id into gid, qid from queen.consumer_groups_metadata m join queen.queues u using (queue_id)
        where u.name = queue_name and m.name = group_name and m.registered;
    if not found then
        return 0;
    end if;
    select array_agg(p.partition_id order by p.partition_id) into pids from queen.partitions p
        where p.queue_id = qid and (partition_name is null or p.name = partition_name);
    update queen.queue_depth d set bound = null where d.queue_id = qid;
    perform 1 from queen.partition_lookup l where l.partition_id = any (pids) order by l.partition_id for share;
    perform 1 from queen.partition_consumers c where c.partition_id = any (pids) and c.group_id = gid
        order by c.partition_id for update;
    update queen.partition_consumers c set acked_seq = t.seq, start_from = null, lease_id = null, lease_to = null,
        lease_expires_at = null, last_lease_id = null, retries = null, isolate = false,
        ready_at = case when l.last_seq > t.seq then clock_timestamp() end
        from queen.partition_lookup l,
            lateral (select case target when 'end' then l.last_seq when 'beginning' then 0
                            else queen.seq_at(l.partition_id, moment) end as seq) t
        where l.partition_id = any (pids) and c.partition_id = l.partition_id and c.group_id = gid;
    get diagnostics moved = row_count;
    return moved;
end $$;

-- Forget the position of a group, on one queue or (queue_name NULL) on all. Its subscription is kept unless asked: the
-- group then starts over where it once subscribed. Returns the number of cursors removed.
create or replace function queen.delete_group_v1(group_name text, queue_name text, delete_metadata boolean) returns integer
language plpgsql as $$
declare
    qids bigint[];
    gids bigint[];
    total integer;
begin
    if delete_metadata then
        perform queen.restart_awaited(group_name, queue_name);
    end if;
    select array_agg(k.queue_id), array_agg(k.group_id) into qids, gids from (
        select u.queue_id, m.group_id from queen.consumer_groups_metadata m join queen.queues u using (queue_id)
        where m.name = group_name and (queue_name is null or u.name = queue_name) order by u.name for no key update of u) k;
    perform 1 from queen.queue_depth d where d.queue_id = any (qids) order by d.queue_id for update;
    update queen.queue_depth d set bound = null where d.queue_id = any (qids);
    perform 1 from queen.partition_consumers c join queen.partition_lookup l using (partition_id)
        where l.queue_id = any (qids) and c.group_id = any (gids) order by c.partition_id, c.group_id for update of c;
    delete from queen.partition_consumers c using queen.partition_lookup l
        where l.queue_id = any (qids) and c.partition_id = l.partition_id and c.group_id = any (gids);
    get diagnostics total = row_count;
    if delete_metadata then
        delete from queen.consumer_groups_metadata m where m.group_id = any (gids);
    else
        update queen.consumer_groups_metadata m set registered = false where m.group_id = any (gids);
    end if;
    return total;
end $$;

-- Change where a group starts, on every queue on which it subscribed as new or from a time. Cursors that have a position keep it;
-- those that have not resolved theirs yet start after the new time. Returns the number of subscriptions changed.
create or replace function queen.move_subscription_v1(group_name text, moment timestamptz) returns integer
language plpgsql as $$
declare
    qids bigint[];
    gids bigint[];
begin
    select array_agg(k.queue_id), array_agg(k.group_id) into qids, gids from (
        select u.queue_id, m.group_id from queen.consumer_groups_metadata m join queen.queues u using (queue_id)
        where m.name = group_name and m.subscription_mode in ('new', 'timestamp') order by u.name for no key update of u) k;
    update queen.consumer_groups_metadata m set subscription_timestamp = moment where m.group_id = any (gids);
    with k as materialized (
        select c.partition_id, c.group_id from queen.partition_consumers c join queen.partition_lookup l using (partition_id)
        where l.queue_id = any (qids) and c.group_id = any (gids) and isfinite(c.start_from)
        order by c.partition_id, c.group_id for update of c
    )
    update queen.partition_consumers c set start_from = moment, ready_at = clock_timestamp()
        from k where c.partition_id = k.partition_id and c.group_id = k.group_id;
    return coalesce(cardinality(gids), 0);
end $$;

-- Where a cursor stands, with what its subscription will skip counted as passed.
create or replace function queen.position_of(pid bigint, acked bigint, start timestamptz) returns bigint
language sql stable as $$
    select case when start is null or start = 'infinity' then acked else greatest(acked, queen.seq_at(pid, start)) end
$$;

-- How far each cursor of a group (NULL = all) on a queue (NULL = all) is behind. Messages that were deleted one by one count
-- until the cursor has passed their place.
create or replace function queen.cursor_lag_v2(group_name text, queue_name text)
returns table (
    consumer_group text, queue text, partition text, partition_uid uuid, group_id bigint, queue_id bigint, lag bigint,
    oldest_unconsumed_at timestamptz, lag_seconds double precision, lease_id uuid, lease_expires_at timestamptz,
    last_consumed_at timestamptz, consumed bigint
)
language sql stable as $$
    select g.name, q.name, p.name, p.uid, g.group_id, q.queue_id,
           case when o.created_at is null then 0 else l.last_seq - greatest(k.position, l.trimmed_seq) end, o.created_at,
           coalesce(greatest(extract(epoch from clock_timestamp() - o.created_at), 0), 0)::double precision,
           case when c.lease_expires_at > clock_timestamp() then c.lease_id end,
           case when c.lease_expires_at > clock_timestamp() then c.lease_expires_at end, c.last_consumed_at, c.consumed
    from queen.consumer_groups_metadata g join queen.queues q using (queue_id)
    join queen.partition_lookup l on l.queue_id = q.queue_id
    join queen.partitions p on p.partition_id = l.partition_id
    join queen.partition_consumers c on c.partition_id = l.partition_id and c.group_id = g.group_id
    cross join lateral (select queen.position_of(l.partition_id, c.acked_seq, c.start_from) as position) k
    left join lateral (
        select s.created_at from queen.segments s where s.partition_id = l.partition_id and s.last_seq > k.position
        order by s.last_seq limit 1) o on l.last_seq > k.position
    where g.registered and (group_name is null or g.name = group_name) and (queue_name is null or q.name = queue_name)
$$;
