-- The operation queue: work accepted under overload, done later, in order per lane. A lane is a (queue, partition); operations for a
-- whole queue (partition NULL) are a lane of their own.
--
-- Order rule: a lane's operations are done one at a time in the order of their ids, and a failed one that is to be tried
-- again holds its lane. Rank rule: a lane is as urgent as its most urgent operation, because everything ahead of
-- that one has to be done first; enqueuing hands the urgency on to the operations ahead. Among equals, the oldest goes first.

-- Ids come from the clocks of many servers; one that is not behind everything in its lane gets the millisecond after it.
create or replace function queen.operation_id_after(newest uuid, proposed uuid) returns uuid
language sql immutable as $$
    select case when proposed > newest then proposed
           else (lpad(to_hex(('x' || left(replace(newest::text, '-', ''), 12))::bit(48)::bigint + 1), 12, '0')
                 || substr(replace(proposed::text, '-', ''), 13))::uuid end
$$;

-- The lock under which operations enter a lane: their ids then rise in the order of their commits.
create or replace function queen.lane_key(queue_name text, partition_name text) returns integer
language sql immutable as $$
    select hashtext(queue_name || E'\x1f' || coalesce(partition_name, ''))
$$;

-- Add operations, each at the end of its lane. One whose id is already there is left as it is: a repeated call adds nothing.
-- position: how many pending operations are more urgent or older.
create or replace function queen.enqueue_operations_v1(
    ids uuid[], types text[], queue_names text[], partition_names text[], priorities integer[], payloads bytea[],
    timeouts integer[], retry_limits integer[]
) returns table (ord integer, id uuid, "position" bigint)
language plpgsql as $$
#variable_conflict use_column
declare
    o record;
    newest uuid;
begin
    for o in
        select x.*, queen.lane_key(x.queue_name, x.partition_name) as lane
        from unnest(ids, types, queue_names, partition_names, priorities, payloads, timeouts, retry_limits) with ordinality
            x (id, type, queue_name, partition_name, priority, payload, timeout, retry_limit, ord)
        order by lane, x.ord
    loop
        perform pg_advisory_xact_lock(1903520101, o.lane);      -- 'quee'
        if not exists (select from queen.operation_queue q where q.id = o.id) then
            select q.id into newest from queen.operation_queue q
                where q.queue_name = o.queue_name and coalesce(q.partition_name, '') = coalesce(o.partition_name, '')
                and q.status in ('pending', 'processing') order by q.id desc limit 1;
            if found then
                o.id := queen.operation_id_after(newest, o.id);
            end if;
            insert into queen.operation_queue (id, operation_type, queue_name, partition_name, priority, payload, estimated_size,
                timeout_seconds, max_retries)
            values (o.id, o.type, o.queue_name, o.partition_name, o.priority, o.payload, octet_length(o.payload), o.timeout, o.retry_limit);
            update queen.operation_queue q set priority = o.priority
                where q.queue_name = o.queue_name and coalesce(q.partition_name, '') = coalesce(o.partition_name, '')
                and q.status in ('pending', 'processing') and q.priority > o.priority;
        end if;
        ord := o.ord;
        id := o.id;
        select count(*) into position from queen.operation_queue q
            where q.status = 'pending' and (q.priority, q.id) < (select (e.priority, e.id) from queen.operation_queue e where e.id = o.id);
        return next;
    end loop;
end $$;

-- Claim up to max_claimed operations, each the first of its lane. A lane whose first operation is being done, or waits before it
-- is tried again, gives none. Two claimers never hold one lane: which operation is first does not change while it is
-- unfinished, and its row is taken by one of them only.
create or replace function queen.claim_operations_v1(worker text, max_claimed integer) returns setof queen.operation_queue
language sql as $$
    with first as materialized (
        select o.id from queen.operation_queue o
        where o.status = 'pending' and o.not_before <= clock_timestamp() and not exists (
            select from queen.operation_queue e
            where e.queue_name = o.queue_name and coalesce(e.partition_name, '') = coalesce(o.partition_name, '')
            and e.status in ('pending', 'processing') and e.id < o.id)
        order by o.priority, o.id limit max_claimed for update skip locked
    )
    update queen.operation_queue o set status = 'processing', processing_started_at = clock_timestamp(), claimed_by_worker = worker
    from first f where o.id = f.id returning o.*
$$;

-- An attempt failed: try again after retry_seconds, or give up when there were enough. The claim is the worker and the moment it
-- claimed; when the operation is no longer claimed so, somebody else has it and nothing changes (NULL).
create or replace function queen.fail_operation_v1(
    operation uuid, worker text, claimed_at timestamptz, message text, retry_seconds double precision
) returns text
language sql as $$
    update queen.operation_queue o set
        status = case when o.retry_count >= o.max_retries then 'failed' else 'pending' end,
        processed_at = case when o.retry_count >= o.max_retries then clock_timestamp() end,
        retry_count = least(o.retry_count + 1, o.max_retries), not_before = clock_timestamp() + make_interval(secs => retry_seconds),
        processing_started_at = null, claimed_by_worker = null, error_message = message, last_error_at = clock_timestamp()
    where o.id = operation and o.status = 'processing' and o.claimed_by_worker = worker and o.processing_started_at = claimed_at
    returning o.status
$$;

-- Take operations back from workers that have held them longer than their timeout. That is a failed attempt, so an operation
-- that brings its workers down is given up one day.
create or replace function queen.reclaim_operations_v1(max_reclaimed integer) returns table (id uuid, status text)
language sql as $$
    with late as materialized (
        select o.id from queen.operation_queue o
        where o.status = 'processing' and o.processing_started_at <= clock_timestamp() - make_interval(secs => o.timeout_seconds)
        order by o.processing_started_at limit max_reclaimed for update skip locked
    )
    select l.id, queen.fail_operation_v1(l.id, o.claimed_by_worker, o.processing_started_at,
        format('not finished by worker %s within %s seconds', o.claimed_by_worker, o.timeout_seconds), 0)
    from late l join queen.operation_queue o using (id)
$$;
