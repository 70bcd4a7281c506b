-- What servers of version 1 call. They may run beside newer ones and have integers for the numbers of queues and groups.
-- A procedure that began before a migration changed a table and reads the table after that fails, because its variables
-- have the old types. Newer servers repeat such a call; for these servers it is repeated here.

create or replace function queen.find_partitions_v1(queue_names text[], partition_names text[])
returns table (ord integer, partition_id bigint, uid uuid, queue_id integer, bounded boolean, encryption_enabled boolean)
language sql stable as $$
    select * from queen.find_partitions_v2(queue_names, partition_names)
$$;

create or replace function queen.ensure_partitions_v1(queue_names text[], partition_names text[])
returns table (ord integer, partition_id bigint, uid uuid, queue_id integer, bounded boolean, encryption_enabled boolean)
language plpgsql as $$
#variable_conflict use_column
begin
    for attempt in 1..3 loop
        begin
            return query select e.ord, e.partition_id, e.uid, e.queue_id::integer, e.bounded, e.encryption_enabled
                from queen.ensure_partitions_v2(queue_names, partition_names) e;
            return;
        exception when datatype_mismatch or undefined_column then
            if attempt = 3 then
                raise;
            end if;
        end;
    end loop;
end $$;

create or replace function queen.push_v1(
    pids bigint[], ns integer[], bases uuid[], last_ids uuid[], txs bytea[], datas bytea[], traces bytea[], subs bytea[],
    encs text[], keys uuid[], key_pos integer[], bounded_queues integer[], befores integer[] default null, afters integer[] default null,
    tags integer[] default null
) returns table (partition_id bigint, last_seq bigint, created_at timestamptz)
language sql as $$
    select * from queen.push_v2(pids, ns, bases, last_ids, txs, datas, traces, subs, encs, keys, key_pos, bounded_queues, befores, afters, tags)
$$;

create or replace function queen.push_segment_v1(
    pid bigint, n integer, base uuid, last_id uuid, tx bytea, data bytea, trace bytea, sub bytea, enc text, keys uuid[], key_pos integer[],
    bounded_queue integer, tag integer default null
) returns bigint
language sql as $$
    select queen.push_segment_v2(pid, n, base, last_id, tx, data, trace, sub, enc, keys, key_pos, bounded_queue, tag)
$$;

create or replace function queen.register_group_v1(queue_name text, group_name text, mode text, start timestamptz)
returns table (queue_id integer, group_id integer)
language plpgsql as $$
#variable_conflict use_column
begin
    for attempt in 1..3 loop
        begin
            -- their groups in the mode new start at the end
            return query select r.queue_id::integer, r.group_id::integer from queen.register_group_v2(queue_name, group_name, mode,
                case when mode = 'new' then 'infinity' else start end) r;
            return;
        exception when datatype_mismatch or undefined_column then
            if attempt = 3 then
                raise;
            end if;
        end;
    end loop;
end $$;

create or replace function queen.pop_v1(
    req_groups integer[], req_from integer[], req_to integer[], req_partition bigint[], req_batch integer[], req_max integer[],
    req_lease uuid[], req_auto boolean[], req_start timestamptz[], most_bytes bigint default null, req_tag integer[] default null
) returns table (
    request integer, partition_id bigint, partition_uid uuid, partition_name text, queue_id integer, group_id integer,
    from_seq bigint, to_seq bigint, lease_expires_at timestamptz, attempt integer,
    last_seq bigint, n integer, base uuid, base_idx integer, created_at timestamptz,
    tx bytea, data bytea, trace_ids bytea, subs bytea, enc text, reason text, ready_at timestamptz
)
language plpgsql as $$
#variable_conflict use_column
begin
    for attempt in 1..3 loop
        begin
            return query select p.request, p.partition_id, p.partition_uid, p.partition_name, p.queue_id::integer, p.group_id::integer,
                p.from_seq, p.to_seq, p.lease_expires_at, p.attempt, p.last_seq, p.n, p.base, p.base_idx, p.created_at,
                p.tx, p.data, p.trace_ids, p.subs, p.enc, p.reason, p.ready_at
                from queen.pop_v2(req_groups, null, req_from, req_to, req_partition, req_tag, req_batch, req_max, req_lease,
                    null, req_auto, req_start, null, most_bytes) p;
            return;
        exception when datatype_mismatch or undefined_column then
            if attempt = 3 then
                raise;
            end if;
        end;
    end loop;
end $$;

create or replace function queen.ack_v1(pids bigint[], gids integer[], leases uuid[], uptos bigint[], verdicts jsonb[], replay boolean)
returns table (run integer, result jsonb, released boolean)
language plpgsql as $$
#variable_conflict use_column
begin
    for attempt in 1..3 loop
        begin
            return query select * from queen.ack_v2(pids, gids, leases, uptos, verdicts, replay);
            return;
        exception when datatype_mismatch or undefined_column then
            if attempt = 3 then
                raise;
            end if;
        end;
    end loop;
end $$;

create or replace function queen.transaction_v1(
    required uuid[], replay boolean,
    ack_pids bigint[], ack_gids integer[], ack_leases uuid[], ack_verdicts jsonb[],
    pids bigint[], ns integer[], bases uuid[], last_ids uuid[], txs bytea[], datas bytea[], traces bytea[], subs bytea[],
    encs text[], keys uuid[], key_pos integer[], bounded_queues integer[], befores integer[], afters integer[],
    tags integer[] default null,
    out settled jsonb[], out push_pids bigint[], out push_lasts bigint[], out push_times timestamptz[]
)
language plpgsql as $$
#variable_conflict use_column
begin
    for attempt in 1..3 loop
        begin
            select * into settled, push_pids, push_lasts, push_times from queen.transaction_v2(required, replay, ack_pids, ack_gids,
                ack_leases, ack_verdicts, pids, ns, bases, last_ids, txs, datas, traces, subs, encs, keys, key_pos, bounded_queues,
                befores, afters, tags);
            return;
        exception when datatype_mismatch or undefined_column then
            if attempt = 3 then
                raise;
            end if;
        end;
    end loop;
end $$;

create or replace function queen.cursor_lag(group_name text, queue_name text)
returns table (
    consumer_group text, queue text, partition text, partition_uid uuid, group_id integer, queue_id integer, lag bigint,
    oldest_unconsumed_at timestamptz, lag_seconds double precision, lease_id uuid, lease_expires_at timestamptz,
    last_consumed_at timestamptz, consumed bigint
)
language sql stable as $$
    select * from queen.cursor_lag_v2(group_name, queue_name)
$$;

-- Its columns were those of the table, which create or replace cannot change.
drop function if exists queen.configure_v1(text, text, text, jsonb);
create or replace function queen.configure_v1(queue_name text, new_namespace text, new_task text, o jsonb)
returns table (
    queue_id integer, uid uuid, name text, namespace text, task text, lease_time integer, retry_limit integer,
    retry_delay integer, delayed_processing integer, window_buffer integer, max_wait_time_seconds integer, max_size
    bigint, priority integer, ttl integer, dead_letter_queue boolean, dlq_after_max_retries boolean,
    retention_enabled boolean, retention_seconds integer, completed_retention_seconds integer, dedup_window_seconds
    integer, encryption_enabled boolean, version bigint, created_at timestamptz, updated_at timestamptz
)
language plpgsql as $$
#variable_conflict use_column
begin
    for attempt in 1..3 loop
        begin
            return query select q.queue_id::integer, q.uid, q.name, q.namespace, q.task, q.lease_time, q.retry_limit, q.retry_delay,
                q.delayed_processing, q.window_buffer, q.max_wait_time_seconds, q.max_size,
                q.priority, q.ttl, q.dead_letter_queue, q.dlq_after_max_retries,
                q.retention_enabled, q.retention_seconds, q.completed_retention_seconds,
                q.dedup_window_seconds, q.encryption_enabled, q.version, q.created_at, q.updated_at
                from queen.configure_v2(queue_name, new_namespace, new_task, o) q;
            return;
        exception when datatype_mismatch or undefined_column then
            if attempt = 3 then
                raise;
            end if;
        end;
    end loop;
end $$;
