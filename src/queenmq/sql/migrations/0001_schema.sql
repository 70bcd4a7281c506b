-- The tables of queenmq. How they are used is told by the procedures; here stands what each row means.
--
-- Lock order, everywhere: queue, queue_depth, partition_lookup rows by partition_id, partition_consumers rows by
-- (partition_id, group_id). Pops take consumer rows with SKIP LOCKED and never wait.

create table queen.queues (
    queue_id                    integer generated always as identity primary key,
    uid                         uuid not null default gen_random_uuid() unique,
    name                        text not null unique check (char_length(name) between 1 and 255),
    namespace                   text not null default '',
    task                        text not null default '',
    lease_time                  integer not null default 300 check (lease_time >= 0),
    retry_limit                 integer not null default 3 check (retry_limit >= 0),
    retry_delay                 integer not null default 1000 check (retry_delay >= 0),
    delayed_processing          integer not null default 0 check (delayed_processing >= 0),
    window_buffer               integer not null default 0 check (window_buffer >= 0),
    max_wait_time_seconds       integer not null default 0 check (max_wait_time_seconds >= 0),
    max_size                    bigint not null default 0 check (max_size >= 0),
    priority                    integer not null default 0,
    ttl                         integer check (ttl >= 0),
    dead_letter_queue           boolean,
    dlq_after_max_retries       boolean,
    retention_enabled           boolean not null default false,
    retention_seconds           integer not null default 0 check (retention_seconds >= 0),
    completed_retention_seconds integer not null default 0 check (completed_retention_seconds >= 0),
    dedup_window_seconds        integer not null default 3600 check (dedup_window_seconds >= 0),
    encryption_enabled          boolean not null default false,
    version                     bigint not null,
    created_at                  timestamptz not null default clock_timestamp(),
    updated_at                  timestamptz not null default clock_timestamp()
);
comment on column queen.queues.ttl is 'seconds; NULL until a user sets it, and then older messages are neither delivered nor kept';
comment on column queen.queues.dead_letter_queue is 'NULL = default (dead letters on); false = discard with an audit row';
comment on column queen.queues.dlq_after_max_retries is 'NULL = default (on); false = retry without limit';
comment on column queen.queues.retry_delay is 'milliseconds; every other duration is in seconds';
create index queues_namespace_task on queen.queues (namespace, task);

-- One source of versions for all queues, so that a re-created queue is newer than its predecessor.
create sequence queen.queue_version;

create table queen.partitions (
    partition_id bigint generated always as identity primary key,
    queue_id     integer not null references queen.queues (queue_id),
    uid          uuid not null default gen_random_uuid() unique,
    name         text not null check (char_length(name) between 1 and 255),
    created_at   timestamptz not null default clock_timestamp(),
    unique (queue_id, name)
);

-- The last message of each partition, and at the same time the row whose lock gives out sequence numbers.
-- A trigger on queen.segments refuses every insert that this row does not already cover.
create table queen.partition_lookup (
    partition_id            bigint primary key,
    queue_id                integer not null,
    last_seq                bigint not null default 0,
    last_message_id         uuid,
    last_message_created_at timestamptz not null default '-infinity',
    trimmed_seq             bigint not null default 0,
    trimmed_at              timestamptz not null default '-infinity',
    dedup_floor             bigint not null default 0,
    forget_seq              bigint not null default 0,
    forget_at               timestamptz not null default '-infinity',
    bounded                 boolean not null default false
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 200,
        autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
comment on column queen.partition_lookup.trimmed_seq is 'retention has removed every message up to this one';
comment on column queen.partition_lookup.dedup_floor is 'transactionIds up to this message may be forgotten';
comment on column queen.partition_lookup.forget_seq is 'the next dedup_floor, when forget_at is older than the dedup window';
comment on column queen.partition_lookup.bounded is 'the queue has a maxSize';
create index partition_lookup_queue on queen.partition_lookup (queue_id, partition_id);

-- What one flush wrote to one partition: n messages with the sequence numbers (last_seq - n, last_seq].
-- tx, data, trace_ids and subs hold one entry per message, joined by the byte 0x1E; NULL when no message has one,
-- an empty entry when that message has none. enc is a text of n digits, '1' for an encrypted payload.
-- Message i (from 0) has the id base with base_idx + i in its last 16 bits; without a transactionId, the id is it.
-- Segments may have gaps between them: retention and message deletion make them.
create table queen.segments (
    partition_id bigint not null,
    last_seq     bigint not null,
    created_at   timestamptz not null,
    n            integer not null check (n between 1 and 65536),
    base_idx     integer not null default 0,
    base         uuid not null,
    tx           bytea,
    data         bytea not null,
    trace_ids    bytea,
    subs         bytea,
    enc          text,
    primary key (partition_id, last_seq)
) with (toast_tuple_target = 8160, autovacuum_vacuum_insert_scale_factor = 0.2);
alter table queen.segments
    alter tx set storage external, alter data set storage external,
    alter trace_ids set storage external, alter subs set storage external;

-- Which transactionIds a partition holds. A segment with messages of no transactionId has one row for its base.
create table queen.dedup (
    h            uuid not null,
    partition_id bigint not null,
    seq          bigint not null,
    primary key (h, partition_id)
) with (autovacuum_vacuum_scale_factor = 0.05, vacuum_truncate = off);

-- One row per (queue, consumer group): that the group exists, and where it starts.
create table queen.consumer_groups_metadata (
    group_id               integer generated always as identity primary key,
    queue_id               integer not null references queen.queues (queue_id),
    name                   text not null check (char_length(name) between 1 and 255),
    subscription_mode      text check (subscription_mode in ('all', 'new', 'timestamp')),
    subscription_timestamp timestamptz,
    registered             boolean not null default true,
    created_at             timestamptz not null default clock_timestamp(),
    unique (queue_id, name)
);
comment on column queen.consumer_groups_metadata.subscription_mode is
    'NULL while only partition pops have been made: each partition then starts as its own first pop says';
comment on column queen.consumer_groups_metadata.registered is 'false = cursors deleted, subscription kept';

-- The cursor of one group on one partition, its lease and its retries.
-- ready_at: NULL = drained; <= now = available; future = leased, waiting for a retry, delayed or in a window.
create table queen.partition_consumers (
    partition_id     bigint not null,
    acked_seq        bigint not null default 0,
    ready_at         timestamptz,
    lease_to         bigint,
    lease_expires_at timestamptz,
    start_from       timestamptz,
    last_consumed_at timestamptz,
    consumed         bigint not null default 0,
    lease_id         uuid,
    last_lease_id    uuid,
    group_id         integer not null,
    queue_id         integer not null,
    batches          integer not null default 0,
    isolate          boolean not null default false,
    retries          jsonb,
    primary key (partition_id, group_id)
) with (fillfactor = 30, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 200,
        autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
comment on column queen.partition_consumers.start_from is
    'position not resolved yet: start after this time; infinity = as the first pop of the partition says';
comment on column queen.partition_consumers.last_lease_id is 'the lease that ended last, so that a repeated ack can be recognised';
comment on column queen.partition_consumers.isolate is 'the next delivery is one message: batches with it kept expiring';
comment on column queen.partition_consumers.retries is '{"seq": failures} of messages not settled yet';
create index partition_consumers_ready on queen.partition_consumers (group_id, ready_at) where ready_at is not null;
create index partition_consumers_lease on queen.partition_consumers (lease_id) where lease_id is not null;

-- An upper bound of the messages not yet consumed by every group, for queues with a maxSize.
create table queen.queue_depth (
    queue_id integer primary key references queen.queues (queue_id) on delete cascade,
    bound    bigint
) with (fillfactor = 50, vacuum_truncate = off);

-- Dead letters own a copy of their message: they outlive retention.
-- No foreign key to the queue: its check would lock the queue's row while a cursor is held, against the lock order.
create table queen.dead_letter_queue (
    id             uuid primary key default gen_random_uuid(),
    queue_id       integer not null,
    partition_id   bigint not null,
    partition_uid  uuid not null,
    partition_name text not null,
    consumer_group text not null,
    seq            bigint not null,
    message_id     uuid not null,
    transaction_id text not null,
    trace_id       uuid,
    producer_sub   text,
    data           bytea not null,
    encrypted      boolean not null default false,
    error_message  text not null,
    retry_count    integer not null default 0,
    created_at     timestamptz not null,
    failed_at      timestamptz not null default clock_timestamp(),
    unique (partition_id, seq, consumer_group)
);
alter table queen.dead_letter_queue alter data set storage external;
create index dead_letter_queue_failed on queen.dead_letter_queue (queue_id, failed_at desc);
create index dead_letter_queue_message on queen.dead_letter_queue (partition_uid, transaction_id);

create table queen.message_traces (
    id             uuid primary key,
    queue_id       integer not null references queen.queues (queue_id),
    partition_uid  uuid not null,
    transaction_id text not null,
    consumer_group text,
    event_type     text not null default 'info',
    data           jsonb not null,
    worker_id      text,
    created_at     timestamptz not null default clock_timestamp()
);
create index message_traces_message on queen.message_traces (partition_uid, transaction_id, created_at);
create index message_traces_queue on queen.message_traces (queue_id);
create index message_traces_age on queen.message_traces (created_at);

create table queen.message_trace_names (
    trace_name text not null,
    trace_id   uuid not null references queen.message_traces (id) on delete cascade,
    primary key (trace_name, trace_id)
);
create index message_trace_names_trace on queen.message_trace_names (trace_id);

-- Work accepted under overload and done later, in order per (queue, partition).
create table queen.operation_queue (
    id                    uuid primary key,
    operation_type        text not null,
    queue_name            text not null,
    partition_name        text,
    priority              integer not null default 5,
    payload               bytea not null,
    estimated_size        integer not null,
    status                text not null default 'pending' check (status in ('pending', 'processing', 'completed', 'failed')),
    created_at            timestamptz not null default clock_timestamp(),
    not_before            timestamptz not null default '-infinity',
    processing_started_at timestamptz,
    processed_at          timestamptz,
    claimed_by_worker     text,
    timeout_seconds       integer not null default 30,
    retry_count           integer not null default 0,
    max_retries           integer not null default 3,
    error_message         text,
    last_error_at         timestamptz,
    result                bytea
) with (autovacuum_vacuum_scale_factor = 0.02, vacuum_truncate = off);
comment on column queen.operation_queue.not_before is 'when it may be tried; infinity = behind another operation of its lane';
create index operation_queue_pending on queen.operation_queue (priority, id) where status = 'pending';
create index operation_queue_ready on queen.operation_queue (priority, id) where status = 'pending' and not_before < 'infinity';
create index operation_queue_lane on queen.operation_queue (queue_name, coalesce(partition_name, ''), id)
    where status in ('pending', 'processing');
create index operation_queue_processing on queen.operation_queue (processing_started_at) where status = 'processing';
create index operation_queue_done on queen.operation_queue (processed_at) where status in ('completed', 'failed');

-- Cluster-wide switches and positions of background services.
create table queen.system_state (
    key        text primary key,
    value      jsonb not null,
    updated_at timestamptz not null default clock_timestamp()
);

create table queen.metrics_history (
    at        timestamptz not null,
    hostname  text not null,
    worker_id text not null,
    scope     text not null default '',
    metrics   jsonb not null,
    primary key (at, hostname, worker_id, scope)
);
comment on column queen.metrics_history.scope is 'queue name, or empty for the worker itself';

create table queen.metrics_rollup (
    bucket      text not null check (bucket in ('minute', 'hour', 'day')),
    bucket_at   timestamptz not null,
    hostname    text not null default '',
    scope       text not null default '',
    metrics     jsonb not null,
    computed_at timestamptz not null default clock_timestamp(),
    primary key (bucket, bucket_at, hostname, scope)
);

-- What was removed, and why: the audit of retention, eviction and discarded messages.
create table queen.retention_history (
    id             bigint generated always as identity primary key,
    at             timestamptz not null default clock_timestamp(),
    kind           text not null check (kind in ('expired', 'completed', 'ttl', 'evicted', 'discarded', 'deleted', 'partitions')),
    queue_name     text not null,
    partition_name text,
    consumer_group text,
    messages       bigint not null,
    detail         text
);
create index retention_history_at on queen.retention_history (at);

-- While a pipeline archives a queue, retention keeps what it has not committed yet, up to cap_seconds of it.
create table queen.archive_holds (
    queue_id    integer not null references queen.queues (queue_id) on delete cascade,
    holder      text not null,
    held_from   timestamptz not null default '-infinity',
    cap_seconds integer not null default 604800 check (cap_seconds > 0),
    overrun_at  timestamptz,
    updated_at  timestamptz not null default clock_timestamp(),
    primary key (queue_id, holder)
);
comment on column queen.archive_holds.held_from is 'everything created at or before this time is archived';
comment on column queen.archive_holds.overrun_at is 'when retention last had to pass the hold because of its cap';

create table queen.stream_queries (
    query_id     uuid primary key default gen_random_uuid(),
    name         text not null unique,
    source_queue text not null,
    sink_queue   text,
    config_hash  text not null,
    created_at   timestamptz not null default clock_timestamp(),
    updated_at   timestamptz not null default clock_timestamp()
);

create table queen.stream_state (
    query_id      uuid not null references queen.stream_queries (query_id) on delete cascade,
    partition_uid uuid not null,
    key           text not null,
    value         jsonb not null,
    updated_at    timestamptz not null default clock_timestamp(),
    primary key (query_id, partition_uid, key)
);
