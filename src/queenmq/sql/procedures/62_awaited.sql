-- Where groups start that popped before what they named was there.

-- What a pop names: a queue, one of its partitions, or a namespace and task (NULL = any). Names have no control characters.
create or replace function queen.awaited_topic(queue text, partition text, namespace text, task text) returns text
language sql immutable parallel safe as $$
    select case when queue is null then 'n:' || coalesce(namespace, E'\x1f') || E'\x1e' || coalesce(task, E'\x1f')
                when partition is null then 'q:' || queue
                else 'p:' || queue || E'\x1e' || partition end
$$;

-- Note when pops of groups that start with what is new arrived, one entry each: at a moment, or (where that is NULL) an age in seconds
-- ago. The earliest counts. When 10,000 are kept, nothing is added. Inserts come first: a row that nothing else can see
-- holds up no deletion, so this never waits in a circle with one.
create or replace function queen.await_subscriptions_v1(
    queues text[], partitions text[], namespaces text[], tasks text[], group_names text[], moments timestamptz[], ages double precision[]
) returns void
language plpgsql as $$
declare
    t timestamptz := clock_timestamp();
    names text[];
    topics text[];
    sinces timestamptz[];
    room bigint;
begin
    select array_agg(x.name), array_agg(x.topic), array_agg(x.since) into names, topics, sinces from (
        select u.name, w.topic, min(coalesce(u.moment, t - make_interval(secs => u.age))) as since
        from unnest(queues, partitions, namespaces, tasks, group_names, moments, ages) u (queue, partition, namespace, task, name, moment, age)
        cross join lateral (select queen.awaited_topic(u.queue, u.partition, u.namespace, u.task) as topic) w
        group by u.name, w.topic order by u.name, w.topic) x;
    perform 1 from unnest(names, topics) x (name, topic) where not exists (
        select from queen.awaited_subscriptions a where a.group_name = x.name and hashtextextended(a.topic, 0) = hashtextextended(x.topic, 0));
    if found then
        -- It counts from now on: a crash must not forget it.
        perform set_config('synchronous_commit', 'on', true) where current_setting('synchronous_commit') = 'off';
        select 10000 - count(*) into room from queen.awaited_subscriptions;
        insert into queen.awaited_subscriptions (group_name, topic, since, seen_at)
        select x.name, x.topic, x.since, t from unnest(names, topics, sinces) with ordinality x (name, topic, since, place)
        where not exists (
            select from queen.awaited_subscriptions a where a.group_name = x.name and hashtextextended(a.topic, 0) = hashtextextended(x.topic, 0))
        order by x.place limit greatest(room, 0)
        on conflict do nothing;
    end if;
    with k as materialized (
        select a.group_name, a.topic, x.since from unnest(names, topics, sinces) x (name, topic, since)
        join queen.awaited_subscriptions a on a.group_name = x.name and hashtextextended(a.topic, 0) = hashtextextended(x.topic, 0)
            and a.topic = x.topic
        where a.since > x.since or a.seen_at < t - interval '1 hour'
        order by a.group_name, a.topic for update of a
    )
    update queen.awaited_subscriptions a set since = least(a.since, k.since), seen_at = t
        from k where a.group_name = k.group_name and a.topic = k.topic;
end $$;

-- The start of a group on a queue, or on one partition of it: the given one, or that of an earlier pop that found nothing there. What a
-- pop of a namespace has decided ends, for one queue, where the group was deleted from that queue ('r:').
create or replace function queen.awaited_start(q queen.queues, group_of text, partition_of text, start timestamptz) returns timestamptz
language sql stable as $$
    select least(start, min(a.since) filter (where left(a.topic, 1) in ('q', 'p')),
        case when bool_or(left(a.topic, 1) = 'n')
             then greatest(min(a.since) filter (where left(a.topic, 1) = 'n'), min(a.since) filter (where left(a.topic, 1) = 'r')) end)
    from (
        select queen.awaited_topic(q.name, null, null, null) as topic
        union all select queen.awaited_topic(q.name, partition_of, null, null) where partition_of is not null
        union all select queen.awaited_topic(null, null, n, t) from unnest(array[q.namespace, null]) n, unnest(array[q.task, null]) t
        union all select 'r:' || q.name
    ) x join queen.awaited_subscriptions a on a.group_name = group_of
        and hashtextextended(a.topic, 0) = hashtextextended(x.topic, 0) and a.topic = x.topic
$$;

-- Where a cursor starts whose subscription is undecided, and which a pop now decides.
create or replace function queen.decided_start(c queen.partition_consumers, q queen.queues, start timestamptz) returns timestamptz
language plpgsql as $$
declare
    k record;
begin
    select g.name as group_of, p.name as partition_of into k from queen.consumer_groups_metadata g, queen.partitions p
        where g.group_id = c.group_id and p.partition_id = c.partition_id;
    start := queen.awaited_start(q, k.group_of, k.partition_of, start);
    perform queen.forget_awaited(k.group_of, q.name, k.partition_of);
    return start;
end $$;

-- Start the partitions of a queue that pops of this group named before they were there when those pops arrived, where that is earlier
-- than start. fresh: all cursors of the group were just made; otherwise only those that no pop has touched are moved.
-- The caller has locked the partitions.
create or replace function queen.start_awaited(g queen.consumer_groups_metadata, fresh boolean, start timestamptz) returns void
language sql as $$
    with k as materialized (
        select c.partition_id, l, a.since from queen.queues q
        join queen.awaited_subscriptions a on a.group_name = g.name and starts_with(a.topic, queen.awaited_topic(q.name, '', null, null))
        join queen.partitions p on p.queue_id = q.queue_id
            and p.name = substr(a.topic, length(queen.awaited_topic(q.name, '', null, null)) + 1)
        join queen.partition_lookup l on l.partition_id = p.partition_id
        join queen.partition_consumers c on c.partition_id = p.partition_id and c.group_id = g.group_id
        where q.queue_id = g.queue_id and a.since < start and (fresh or c.start_from = 'infinity')
        order by c.partition_id for update of c
    )
    update queen.partition_consumers c set acked_seq = queen.end_at(k.l, k.since), start_from = null,
        ready_at = case when (k.l).last_message_created_at > k.since then clock_timestamp() end
        from k where c.partition_id = k.partition_id and c.group_id = g.group_id
$$;

-- A group's start on a queue, or on one partition of it, is decided. A row that is just being written is left to the sweep: a pop
-- forgets in no order, so it must not wait.
create or replace function queen.forget_awaited(group_of text, queue text, partition_of text) returns void
language sql as $$
    with k as materialized (
        select a.topic from queen.awaited_subscriptions a where a.group_name = group_of and case
            when partition_of is not null then a.topic = queen.awaited_topic(queue, partition_of, null, null)
            else a.topic in (queen.awaited_topic(queue, null, null, null), 'r:' || queue)
                or starts_with(a.topic, queen.awaited_topic(queue, '', null, null)) end
        for update skip locked
    )
    delete from queen.awaited_subscriptions a using k where a.group_name = group_of and a.topic = k.topic
$$;

-- A group is deleted, on one queue or (queue NULL) everywhere: its next pop decides anew.
create or replace function queen.restart_awaited(group_of text, queue text) returns void
language plpgsql as $$
declare
    own text := queen.awaited_topic(queue, '', null, null);
begin
    perform 1 from queen.awaited_subscriptions a where a.group_name = group_of order by a.topic for update;
    delete from queen.awaited_subscriptions a where a.group_name = group_of
        and (queue is null or a.topic = queen.awaited_topic(queue, null, null, null) or starts_with(a.topic, own));
    insert into queen.awaited_subscriptions (group_name, topic, since, seen_at)
        select group_of, 'r:' || queue, clock_timestamp(), clock_timestamp() where queue is not null and exists (
            select from queen.awaited_subscriptions a where a.group_name = group_of and starts_with(a.topic, 'n:'))
        on conflict (group_name, hashtextextended(topic, 0)) do update set since = excluded.since, seen_at = excluded.seen_at;
end $$;
