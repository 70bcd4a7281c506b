-- Eviction: a message that a group has not consumed within maxWaitTimeSeconds is dead-lettered for that group.

drop function if exists queen.evict_from(bigint, integer, queen.queues, integer, timestamptz);

-- Evict up to `budget` messages from one cursor and write it; returns how many. A cursor that is being popped, or whose lease is
-- live, is left alone: its messages are being processed. A lease that ran out ends here, and its acks are refused.
create or replace function queen.evict_from(pid bigint, gid bigint, q queen.queues, budget integer, t timestamptz) returns integer
language plpgsql as $$
declare
    c queen.partition_consumers;
    s record;
    at_seq bigint;
    upto bigint;
    evicted integer := 0;
begin
    select k.* into c from queen.partition_consumers k where k.partition_id = pid and k.group_id = gid for update skip locked;
    if not found or c.lease_expires_at > clock_timestamp() then
        return 0;
    end if;
    if c.start_from is not null then    -- where the start is still open, this is the end: nothing is evicted
        c.acked_seq := queen.start_seq(pid, c.start_from);
    end if;
    if q.ttl > 0 then
        c.acked_seq := greatest(c.acked_seq, queen.seq_at(pid, t - make_interval(secs => q.ttl)));
    end if;
    upto := queen.seq_at(pid, t - make_interval(secs => q.max_wait_time_seconds));
    <<segments>>
    for s in select g.last_seq, g.n from queen.segments g
        where g.partition_id = pid and g.last_seq > c.acked_seq and g.last_seq <= upto order by g.last_seq limit budget
    loop
        for at_seq in select generate_series(greatest(c.acked_seq, s.last_seq - s.n) + 1, s.last_seq) loop
            exit segments when evicted >= budget;
            perform queen.dead_letter(pid, gid, at_seq, 'maxWaitTimeSeconds exceeded', coalesce((c.retries ->> at_seq::text)::integer, 0));
            c.acked_seq := at_seq;
            evicted := evicted + 1;
        end loop;
    end loop;
    if evicted > 0 then
        -- a partition is declared drained only under its row lock; a push that holds it has something new anyway
        perform 1 from queen.partition_lookup l where l.partition_id = pid for share skip locked;
        c.ready_at := case when not found or exists (
            select from queen.partition_lookup l where l.partition_id = pid and l.last_seq > c.acked_seq) then clock_timestamp() end;
        update queen.partition_consumers k set acked_seq = c.acked_seq, ready_at = c.ready_at, start_from = null, isolate = false,
            lease_id = null, lease_to = null, lease_expires_at = null, last_lease_id = null,
            retries = queen.open_retries(c.retries, c.acked_seq)
            where k.partition_id = pid and k.group_id = gid;
    end if;
    return evicted;
end $$;

-- One step: evict up to max_messages behind partition `after`, looking at max_partitions. evicted: [{queue, group, partition (when it
-- is only one), messages}]; ownerless: queues with overdue messages and no group, so that nobody would find them in the
-- dead letters: register one and repeat the step; next_after: where the next step goes on, NULL at the end of the pass.
create or replace function queen.evict_v1(
    after bigint, max_messages integer, max_partitions integer, out evicted jsonb, out ownerless text[], out next_after bigint
)
language plpgsql as $$
declare
    t timestamptz := clock_timestamp();
    c record;
    q queen.queues;
    n integer;
    budget integer := max_messages;
    pids bigint[] := '{}';
    gids bigint[] := '{}';
    counts integer[] := '{}';
begin
    ownerless := '{}';
    select case when count(*) = max_partitions then max(k.partition_id) end into next_after from (
        select l.partition_id from queen.partition_lookup l where l.partition_id > after order by l.partition_id limit max_partitions) k;
    for c in
        select l.partition_id, l.queue_id, k.group_id
        from (select x.* from queen.partition_lookup x where x.partition_id > after order by x.partition_id limit max_partitions) l
        join queen.queues u on u.queue_id = l.queue_id and u.max_wait_time_seconds > 0
        left join queen.partition_consumers k on k.partition_id = l.partition_id,
        lateral (select g.created_at from queen.segments g
                 where g.partition_id = l.partition_id and g.last_seq > coalesce(k.acked_seq, 0) order by g.last_seq limit 1) s
        where l.last_seq > l.trimmed_seq and s.created_at <= t - make_interval(secs => u.max_wait_time_seconds)
        order by l.partition_id, k.group_id
    loop
        if q.queue_id is distinct from c.queue_id then
            -- locked as the dead letters' reference to it would lock it, but before the cursors, and never waiting for it
            select u.* into q from queen.queues u where u.queue_id = c.queue_id and u.max_wait_time_seconds > 0 for key share skip locked;
            continue when not found;
        end if;
        if c.group_id is null then
            ownerless := case when q.name = any (ownerless) then ownerless else ownerless || q.name end;
            continue;
        end if;
        n := queen.evict_from(c.partition_id, c.group_id, q, budget, t);
        if n > 0 then
            pids := pids || c.partition_id;
            gids := gids || c.group_id;
            counts := counts || n;
            budget := budget - n;
        end if;
        if budget <= 0 then
            next_after := c.partition_id - 1;
            exit;
        end if;
    end loop;
    evicted := queen.note_evicted(pids, gids, counts);
end $$;

drop function if exists queen.note_evicted(bigint[], integer[], integer[]);

-- The audit of one step: a row per queue and group.
create or replace function queen.note_evicted(pids bigint[], gids bigint[], counts integer[]) returns jsonb
language plpgsql as $$
declare
    answer jsonb;
begin
    with counted as (
        select q.name as queue, g.name as consumer_group, sum(x.n) as messages,
               case when count(distinct p.partition_id) = 1 then min(p.name) end as partition
        from unnest(pids, gids, counts) x (pid, gid, n)
        join queen.partitions p on p.partition_id = x.pid join queen.queues q using (queue_id)
        join queen.consumer_groups_metadata g on g.group_id = x.gid group by q.name, g.name
    ), audit as (
        insert into queen.retention_history (kind, queue_name, partition_name, consumer_group, messages, detail)
        select 'evicted', queue, partition, consumer_group, messages, 'maxWaitTimeSeconds exceeded' from counted
    )
    select coalesce(jsonb_agg(jsonb_build_object('queue', queue, 'group', consumer_group, 'partition', partition, 'messages', messages)), '[]')
        into answer from counted;
    return answer;
end $$;
