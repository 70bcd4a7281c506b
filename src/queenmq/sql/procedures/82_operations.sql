-- The operation queue: work accepted under overload, done later, in order per lane. A lane is a (queue, partition); operations for a
-- whole queue (partition NULL) are a lane of their own.
--
-- Order rule: a lane's operations are done one at a time in the order of their ids, and a failed one that is to be tried
-- again holds its lane. Only the first of a lane can be claimed; the others have not_before = infinity until they are first.
-- Rank rule: a lane is as urgent as its most urgent operation, because everything ahead of that one has to be done first;
-- enqueuing hands the urgency on to the operations ahead. Among equals, the oldest goes first.
--
-- Operations enter and leave a lane under its advisory lock, taken before any of its rows; several in the order of their keys.

create or replace function queen.lane_key(queue_name text, partition_name text) returns integer
language sql immutable as $$
    select hashtext(queue_name || E'\x1f' || coalesce(partition_name, ''))
$$;

create or replace function queen.lock_lane(queue_name text, partition_name text) returns void
language sql as $$
    select pg_advisory_xact_lock(1903520101, queen.lane_key(queue_name, partition_name))
$$;

-- Ids come from the clocks of many servers; one that is not behind everything in its lane gets the millisecond after it.
create or replace function queen.operation_id_after(newest uuid, proposed uuid) returns uuid
language sql immutable as $$
    select case when newest is null or proposed > newest then proposed
           else (lpad(to_hex(('x' || left(replace(newest::text, '-', ''), 12))::bit(48)::bigint + 1), 12, '0')
                 || substr(replace(proposed::text, '-', ''), 13))::uuid end
$$;

-- Add operations, each at the end of its lane. One whose id is already there is left as it is: a repeated call adds nothing.
-- ahead: how many pending operations are as urgent or more.
create or replace function queen.enqueue_operations_v1(
    ids uuid[], types text[], queue_names text[], partition_names text[], priorities integer[], payloads bytea[],
    timeouts integer[], retry_limits integer[]
) returns table (ord integer, id uuid, ahead bigint)
language plpgsql as $$
#variable_conflict use_column
declare
    o record;
    newest record;
    counted integer;
begin
    for o in
        select x.* from unnest(ids, types, queue_names, partition_names, priorities, payloads, timeouts, retry_limits) with ordinality
            x (id, type, queue_name, partition_name, priority, payload, timeout, retry_limit, ord)
        order by queen.lane_key(x.queue_name, x.partition_name), x.ord
    loop
        if counted is distinct from o.priority then
            select count(*) into ahead from queen.operation_queue q where q.status = 'pending' and q.priority <= o.priority;
            counted := o.priority;
        end if;
        perform queen.lock_lane(o.queue_name, o.partition_name);
        ord := o.ord;
        id := o.id;
        if not exists (select from queen.operation_queue q where q.id = o.id) then
            select q.id, q.priority into newest from queen.operation_queue q
                where q.queue_name = o.queue_name and coalesce(q.partition_name, '') = coalesce(o.partition_name, '')
                and q.status in ('pending', 'processing') order by q.id desc limit 1;
            id := queen.operation_id_after(newest.id, o.id);
            insert into queen.operation_queue (id, operation_type, queue_name, partition_name, priority, payload, estimated_size,
                not_before, timeout_seconds, max_retries)
            values (id, o.type, o.queue_name, o.partition_name, o.priority, o.payload, octet_length(o.payload),
                case when newest.id is null then '-infinity' else 'infinity' end::timestamptz, o.timeout, o.retry_limit);
            if newest.priority > o.priority then    -- no operation of a lane is less urgent than the ones behind it
                update queen.operation_queue q set priority = o.priority
                    where q.queue_name = o.queue_name and coalesce(q.partition_name, '') = coalesce(o.partition_name, '')
                    and q.status in ('pending', 'processing') and q.priority > o.priority;
            end if;
        end if;
        return next;
        ahead := ahead + 1;
    end loop;
end $$;

-- Claim up to max_claimed operations, each the first of its lane. It stays the first until it is finished, and its row is taken by
-- one claimer only: two never hold one lane.
create or replace function queen.claim_operations_v1(worker text, max_claimed integer) returns setof queen.operation_queue
language plpgsql as $$
begin
    return query
    with first as materialized (
        select o.id from queen.operation_queue o
        where o.status = 'pending' and o.not_before < 'infinity' and o.not_before <= clock_timestamp()
        order by o.priority, o.id limit max_claimed for update skip locked
    )
    update queen.operation_queue o set status = 'processing', processing_started_at = clock_timestamp(), claimed_by_worker = worker
    from first f where o.id = f.id returning o.*;
end $$;

-- End an attempt: completed (failure NULL), tried again after retry_seconds, or given up when it has failed often enough.
-- A claim is the worker and the moment it claimed; when the operation is no longer claimed so, somebody else has it and nothing
-- changes (NULL). Otherwise the new status; a finished operation hands its lane to the next.
create or replace function queen.finish_operation_v1(
    operation uuid, worker text, claimed_at timestamptz, outcome bytea, failure text, retry_seconds double precision
) returns text
language plpgsql as $$
declare
    o queen.operation_queue;
    t timestamptz := clock_timestamp();
begin
    select q.* into o from queen.operation_queue q where q.id = operation;
    perform queen.lock_lane(o.queue_name, o.partition_name);
    update queen.operation_queue q set
        status = case when failure is null then 'completed' when q.retry_count < q.max_retries then 'pending' else 'failed' end,
        processed_at = case when failure is null or q.retry_count >= q.max_retries then t end,
        retry_count = case when failure is null then q.retry_count else least(q.retry_count + 1, q.max_retries) end,
        not_before = case when failure is null then q.not_before else t + make_interval(secs => retry_seconds) end,
        processing_started_at = case when failure is null then q.processing_started_at end,
        claimed_by_worker = case when failure is null then q.claimed_by_worker end,
        error_message = coalesce(failure, q.error_message), last_error_at = case when failure is null then q.last_error_at else t end,
        result = outcome
        where q.id = operation and q.status = 'processing' and q.claimed_by_worker = worker and q.processing_started_at = claimed_at
        returning q.* into o;
    if o.status in ('completed', 'failed') then
        update queen.operation_queue q set not_before = '-infinity'
            where q.id = (select n.id from queen.operation_queue n
                where n.queue_name = o.queue_name and coalesce(n.partition_name, '') = coalesce(o.partition_name, '')
                and n.status in ('pending', 'processing') order by n.id limit 1);
    end if;
    return o.status;
end $$;

-- Take operations back from workers that have held them longer than their timeout. That is a failed attempt, so an operation
-- that brings its workers down is given up one day.
create or replace function queen.reclaim_operations_v1(max_reclaimed integer) returns table (id uuid, status text)
language plpgsql as $$
#variable_conflict use_column
declare
    late record;
begin
    for late in
        select x.* from (
            select o.* from queen.operation_queue o
            where o.status = 'processing' and o.processing_started_at <= clock_timestamp() - make_interval(secs => o.timeout_seconds)
            order by o.processing_started_at limit max_reclaimed) x
        order by queen.lane_key(x.queue_name, x.partition_name)
    loop
        id := late.id;
        status := queen.finish_operation_v1(late.id, late.claimed_by_worker, late.processing_started_at, null,
            format('not finished by worker %s within %s seconds', late.claimed_by_worker, late.timeout_seconds), 0);
        if status is not null then
            return next;
        end if;
    end loop;
end $$;
