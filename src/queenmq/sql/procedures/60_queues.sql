-- Queues, their partitions and their options.

-- The queue of that name, locked against registration of groups and creation of partitions; made when missing.
-- A queue made by a push (dotted) takes namespace and task from the first two parts of its name.
create or replace function queen.lock_queue(queue_name text, dotted boolean, out q queen.queues)
language plpgsql as $$
begin
    loop
        select u.* into q from queen.queues u where u.name = queue_name for no key update;
        exit when found;
        insert into queen.queues (name, namespace, task, version)
        values (queue_name,
                case when dotted and position('.' in queue_name) > 0 then split_part(queue_name, '.', 1) else '' end,
                case when dotted then split_part(queue_name, '.', 2) else '' end, nextval('queen.queue_version'))
        on conflict (name) do nothing;
    end loop;
end $$;

-- Find partitions by (queue, partition) name.
create or replace function queen.find_partitions_v2(queue_names text[], partition_names text[])
returns table (ord integer, partition_id bigint, uid uuid, queue_id bigint, bounded boolean, encryption_enabled boolean)
language sql stable as $$
    select x.ord::integer, p.partition_id, p.uid, q.queue_id, q.max_size > 0, q.encryption_enabled
    from unnest(queue_names, partition_names) with ordinality x (queue_name, partition_name, ord)
    join queen.queues q on q.name = x.queue_name
    join queen.partitions p on p.queue_id = q.queue_id and p.name = x.partition_name
$$;

-- Make the missing ones of these partitions, with a cursor for every registered group. Queues are locked in the order of
-- their names, the same lock that registration takes: neither misses the other.
create or replace function queen.ensure_partitions_v2(queue_names text[], partition_names text[])
returns table (ord integer, partition_id bigint, uid uuid, queue_id bigint, bounded boolean, encryption_enabled boolean)
language plpgsql as $$
#variable_conflict use_column
declare
    wanted pg_catalog.record;
    q queen.queues;
begin
    for wanted in
        select x.queue_name, array_agg(distinct x.partition_name) as names
        from unnest(queue_names, partition_names) x (queue_name, partition_name) group by x.queue_name order by x.queue_name
    loop
        q := queen.lock_queue(wanted.queue_name, true);
        with made as (
            insert into queen.partitions (queue_id, name) select q.queue_id, unnest(wanted.names)
            on conflict (queue_id, name) do nothing returning partition_id, name
        ), looked_up as (
            insert into queen.partition_lookup (partition_id, queue_id, bounded, encrypted, tag)
            select m.partition_id, q.queue_id, q.max_size > 0, q.encryption_enabled, queen.partition_tag(q.name, m.name) from made m
        )
        insert into queen.partition_consumers (partition_id, group_id, queue_id, start_from)
        select m.partition_id, g.group_id, q.queue_id,
               case when g.subscription_mode is null then 'infinity'::timestamptz
                    when g.subscription_timestamp > clock_timestamp() then g.subscription_timestamp end
        from made m, queen.consumer_groups_metadata g where g.queue_id = q.queue_id and g.registered;
    end loop;
    return query select * from queen.find_partitions_v2(queue_names, partition_names);
end $$;

-- Create or change a queue, and its partition Default: only the options given are changed. A cursor that waits because of a delay or a window is
-- looked at again, since the reason may be gone.
create or replace function queen.configure_v2(queue_name text, new_namespace text, new_task text, o jsonb) returns queen.queues
language plpgsql as $$
declare
    q queen.queues;
    was queen.queues;
begin
    q := queen.lock_queue(queue_name, false);
    was := q;
    q := jsonb_populate_record(q, o - '{queue_id,uid,name,version,created_at,updated_at}'::text[]);
    update queen.queues u set
        namespace = coalesce(new_namespace, q.namespace), task = coalesce(new_task, q.task),
        lease_time = q.lease_time, retry_limit = q.retry_limit, retry_delay = q.retry_delay,
        delayed_processing = q.delayed_processing, window_buffer = q.window_buffer, max_wait_time_seconds = q.max_wait_time_seconds,
        max_size = q.max_size, priority = q.priority, ttl = q.ttl, dead_letter_queue = q.dead_letter_queue,
        dlq_after_max_retries = q.dlq_after_max_retries, retention_enabled = q.retention_enabled,
        retention_seconds = q.retention_seconds, completed_retention_seconds = q.completed_retention_seconds,
        dedup_window_seconds = q.dedup_window_seconds, encryption_enabled = q.encryption_enabled,
        version = nextval('queen.queue_version'), updated_at = clock_timestamp()
        where u.queue_id = q.queue_id returning * into q;
    if (q.max_size > 0, q.encryption_enabled) <> (was.max_size > 0, was.encryption_enabled) then
        perform 1 from queen.partition_lookup l where l.queue_id = q.queue_id order by l.partition_id for no key update;
        update queen.partition_lookup l set bounded = q.max_size > 0, encrypted = q.encryption_enabled where l.queue_id = q.queue_id;
    end if;
    insert into queen.queue_depth (queue_id) select q.queue_id where q.max_size > 0 on conflict (queue_id) do nothing;
    if (q.delayed_processing, q.window_buffer, q.retry_delay) is distinct from (was.delayed_processing, was.window_buffer, was.retry_delay) then
        perform queen.look_again(q.queue_id);
    end if;
    perform queen.ensure_partitions_v2(array[queue_name], array['Default']);
    return q;
end $$;

drop function if exists queen.look_again(integer);

-- Make every waiting cursor of a queue that holds no lease available now; the pop decides whether it may deliver.
create or replace function queen.look_again(qid bigint) returns void
language plpgsql as $$
begin
    with k as materialized (
        select c.partition_id, c.group_id from queen.partition_consumers c join queen.partition_lookup l using (partition_id)
        where l.queue_id = qid and c.lease_id is null and c.ready_at > clock_timestamp()
        order by c.partition_id, c.group_id for update of c
    )
    update queen.partition_consumers c set ready_at = clock_timestamp()
        from k where c.partition_id = k.partition_id and c.group_id = k.group_id;
end $$;

-- Remove a queue with everything that belongs to it. Its segments and transactionIds are out of reach at once and are
-- removed by the retention service, in batches: the call does not take longer for more messages.
create or replace function queen.delete_queue_v1(queue_name text) returns boolean
language plpgsql as $$
declare
    qid bigint;
begin
    select u.queue_id into qid from queen.queues u where u.name = queue_name for update;
    if not found then
        return false;
    end if;
    delete from queen.queue_depth d where d.queue_id = qid;
    perform 1 from queen.partition_lookup l where l.queue_id = qid order by l.partition_id for update;
    perform 1 from queen.partition_consumers c join queen.partition_lookup l using (partition_id)
        where l.queue_id = qid order by c.partition_id, c.group_id for update of c;
    delete from queen.partition_consumers c using queen.partition_lookup l where l.queue_id = qid and c.partition_id = l.partition_id;
    delete from queen.stream_state s using queen.partitions p where p.queue_id = qid and s.partition_uid = p.uid;
    perform queen.note_partitions_removed(array(select l.partition_id from queen.partition_lookup l where l.queue_id = qid));
    delete from queen.partition_lookup l where l.queue_id = qid;
    delete from queen.partitions p where p.queue_id = qid;
    delete from queen.consumer_groups_metadata g where g.queue_id = qid;
    delete from queen.dead_letter_queue d where d.queue_id = qid;
    delete from queen.message_traces m where m.queue_id = qid;
    delete from queen.queues u where u.queue_id = qid;
    insert into queen.system_state (key, value) values ('orphans', 'true')
        on conflict (key) do update set value = 'true', updated_at = clock_timestamp();
    return true;
end $$;
