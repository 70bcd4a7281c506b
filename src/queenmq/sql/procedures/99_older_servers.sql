-- What servers of version 1 call. They may run beside newer ones and have integers for the numbers of queues and groups.

create or replace function queen.find_partitions_v1(queue_names text[], partition_names text[])
returns table (ord integer, partition_id bigint, uid uuid, queue_id integer, bounded boolean, encryption_enabled boolean)
language sql stable as $$
    select * from queen.find_partitions_v2(queue_names, partition_names)
$$;

create or replace function queen.ensure_partitions_v1(queue_names text[], partition_names text[])
returns table (ord integer, partition_id bigint, uid uuid, queue_id integer, bounded boolean, encryption_enabled boolean)
language sql as $$
    select * from queen.ensure_partitions_v2(queue_names, partition_names)
$$;

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
language sql as $$
    -- their groups in the mode new start at the end
    select * from queen.register_group_v2(queue_name, group_name, mode, case when mode = 'new' then 'infinity' else start end)
$$;

create or replace function queen.pop_v1(
    req_groups integer[], req_from integer[], req_to integer[], req_partition bigint[], req_batch integer[], req_max integer[],
    req_lease uuid[], req_auto boolean[], req_start timestamptz[], most_bytes bigint default null, req_tag integer[] default null
) returns table (
    request integer, partition_id bigint, partition_uid uuid, partition_name text, queue_id integer, group_id integer,
    from_seq bigint, to_seq bigint, lease_expires_at timestamptz, attempt integer,
    last_seq bigint, n integer, base uuid, base_idx integer, created_at timestamptz,
    tx bytea, data bytea, trace_ids bytea, subs bytea, enc text, reason text, ready_at timestamptz
)
language sql as $$
    select * from queen.pop_v2(req_groups, null, req_from, req_to, req_partition, req_tag, req_batch, req_max, req_lease,
        null, req_auto, req_start, null, most_bytes)
$$;

create or replace function queen.ack_v1(pids bigint[], gids integer[], leases uuid[], uptos bigint[], verdicts jsonb[], replay boolean)
returns table (run integer, result jsonb, released boolean)
language sql as $$
    select * from queen.ack_v2(pids, gids, leases, uptos, verdicts, replay)
$$;

create or replace function queen.transaction_v1(
    required uuid[], replay boolean,
    ack_pids bigint[], ack_gids integer[], ack_leases uuid[], ack_verdicts jsonb[],
    pids bigint[], ns integer[], bases uuid[], last_ids uuid[], txs bytea[], datas bytea[], traces bytea[], subs bytea[],
    encs text[], keys uuid[], key_pos integer[], bounded_queues integer[], befores integer[], afters integer[],
    tags integer[] default null,
    out settled jsonb[], out push_pids bigint[], out push_lasts bigint[], out push_times timestamptz[]
)
language sql as $$
    select * from queen.transaction_v2(required, replay, ack_pids, ack_gids, ack_leases, ack_verdicts, pids, ns, bases, last_ids, txs, datas,
        traces, subs, encs, keys, key_pos, bounded_queues, befores, afters, tags)
$$;

create or replace function queen.cursor_lag(group_name text, queue_name text)
returns table (
    consumer_group text, queue text, partition text, partition_uid uuid, group_id integer, queue_id integer, lag bigint,
    oldest_unconsumed_at timestamptz, lag_seconds double precision, lease_id uuid, lease_expires_at timestamptz,
    last_consumed_at timestamptz, consumed bigint
)
language sql stable as $$
    select * from queen.cursor_lag_v2(group_name, queue_name)
$$;
