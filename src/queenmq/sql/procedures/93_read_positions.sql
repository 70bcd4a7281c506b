-- Positions of streaming reads.

-- Keep the positions of an epoch; from_parent: NULL for the first one of a stream. Returns its number, NULL when the parent is gone.
create or replace function queen.keep_positions_v1(
    from_parent bigint, is_whole boolean, at_positions bytea, passed bigint, at_time timestamptz, seen pg_snapshot
) returns bigint
language plpgsql as $$
declare
    number bigint := nextval(pg_get_serial_sequence('queen.read_positions', 'epoch'));
begin
    insert into queen.read_positions (epoch, lineage, parent, whole, positions, messages, captured_at, snapshot)
    overriding system value
    select number, coalesce(p.lineage, number), p.epoch, is_whole, at_positions, passed, at_time, seen
    from (select 1) x left join queen.read_positions p on p.epoch = from_parent
    where from_parent is null or p.epoch is not null;
    return case when found then number end;
end $$;

-- Forget what no restart can ask for: Spark keeps the last hundred batches, and each epoch needs those down to a whole one.
create or replace function queen.forget_positions_v1(upto bigint, kept integer) returns integer
language plpgsql as $$
declare
    line bigint;
    oldest bigint;
    gone integer;
begin
    select p.lineage into line from queen.read_positions p where p.epoch = upto;
    select p.epoch into oldest from queen.read_positions p
        where p.lineage = line and p.epoch <= upto order by p.epoch desc offset kept limit 1;
    select max(p.epoch) into oldest from queen.read_positions p where p.lineage = line and p.epoch <= oldest and p.whole;
    delete from queen.read_positions p where p.lineage = line and p.epoch < oldest;
    get diagnostics gone = row_count;
    return gone;
end $$;

-- Write down how far the numbers of these partitions went, which the caller has locked and is about to remove. A stream compares
-- that with its position. It is written even when no stream is known: one may have looked and not stored its first epoch yet.
create or replace function queen.note_partitions_removed(gone bigint[]) returns void
language sql as $$
    insert into queen.removed_partitions (partition_id, queue_name, namespace, task, partition_name, last_seq)
    select l.partition_id, q.name, q.namespace, q.task, p.name, l.last_seq
    from queen.partition_lookup l join queen.partitions p using (partition_id) join queen.queues q on q.queue_id = l.queue_id
    where l.partition_id = any (gone) and l.last_seq > 0
    on conflict (partition_id) do nothing
$$;

-- Forget up to max_streams streams that have stored nothing and not looked for so long. Returns how many there were.
create or replace function queen.forget_streams_v1(idle_seconds double precision, max_streams integer) returns integer
language plpgsql as $$
declare
    t timestamptz := clock_timestamp() - make_interval(secs => idle_seconds);
    idle bigint[];
begin
    select array_agg(x.lineage) into idle from (
        select p.lineage from queen.read_positions p group by p.lineage
        having max(greatest(p.seen_at, p.captured_at)) < t order by p.lineage limit max_streams) x;
    delete from queen.read_positions p where p.lineage = any (idle);
    return coalesce(cardinality(idle), 0);
end $$;

-- Forget up to max_rows removals that no stream can miss: every stream that is kept has looked since and stays behind that look
-- (an hour is left for transactions that commit late), or the removal is older than any stream that is kept. Returns how many.
create or replace function queen.forget_removals_v1(idle_seconds double precision, max_rows integer) returns integer
language plpgsql as $$
declare
    t timestamptz := clock_timestamp();
    upto timestamptz;
    gone integer;
begin
    select min(x.at) into upto from (
        select coalesce(max(p.seen_at), min(p.captured_at)) as at from queen.read_positions p group by p.lineage) x;
    upto := greatest(least(upto, t) - interval '1 hour', t - make_interval(secs => idle_seconds) - interval '1 hour');
    delete from queen.removed_partitions r where r.partition_id in (
        select d.partition_id from queen.removed_partitions d where d.removed_at < upto order by d.removed_at limit max_rows);
    get diagnostics gone = row_count;
    return gone;
end $$;

-- Up to which time everything in the queues that `holder` holds is at or before these positions. Messages that are stored and not
-- passed bound it; and so do those that a transaction may have written but not committed when the epoch was chosen: they
-- were created after the last earlier epoch all of whose running transactions had ended by then. The second is for a clock
-- that was read a moment before its transaction got a number.
create or replace function queen.archived_to_v1(at_epoch bigint, hold_holder text, pids bigint[], seqs bigint[])
returns table (queue text, archived_to timestamptz)
language sql stable as $$
    with chosen as (
        select p.lineage, pg_snapshot_xmin(p.snapshot) as low from queen.read_positions p where p.epoch = at_epoch
    ), settled as (
        select max(p.captured_at) - interval '1 second' as at from queen.read_positions p join chosen c using (lineage)
        where p.epoch <= at_epoch and pg_snapshot_xmax(p.snapshot) <= c.low
    ), behind as (
        select l.queue_id, min(s.created_at) - interval '1 microsecond' as at
        from queen.partition_lookup l left join unnest(pids, seqs) x (pid, seq) on x.pid = l.partition_id
        cross join lateral (select g.created_at from queen.segments g where g.partition_id = l.partition_id
                            and g.last_seq > coalesce(x.seq, 0) order by g.last_seq limit 1) s
        where l.last_seq > coalesce(x.seq, 0)
            and l.queue_id in (select h.queue_id from queen.archive_holds h where h.holder = hold_holder)
        group by l.queue_id
    )
    select q.name, least(s.at, b.at)
    from queen.archive_holds h join queen.queues q using (queue_id) cross join settled s left join behind b using (queue_id)
    where h.holder = hold_holder and s.at is not null
$$;

-- Move the cursors of a group to where a stream has come, never back: its lag is seen beside that of other groups, and retention of
-- consumed messages respects it. Leases end, as for a seek: the stream is the group's only consumer. The group must be
-- registered on the queues. Returns the number of cursors moved.
create or replace function queen.publish_progress_v1(group_name text, pids bigint[], seqs bigint[]) returns integer
language plpgsql as $$
declare
    moved integer;
begin
    perform 1 from queen.partition_lookup l where l.partition_id = any (pids) order by l.partition_id for share;
    perform 1 from queen.partition_consumers c join queen.consumer_groups_metadata m using (group_id)
        where c.partition_id = any (pids) and m.name = group_name order by c.partition_id for update of c;
    update queen.partition_consumers c set
        acked_seq = x.seq, start_from = null, lease_id = null, lease_to = null, lease_expires_at = null, last_lease_id = null,
        retries = null, isolate = false, consumed = c.consumed + x.seq - c.acked_seq, batches = c.batches + 1,
        last_consumed_at = clock_timestamp(), ready_at = case when l.last_seq > x.seq then clock_timestamp() end
        from unnest(pids, seqs) x (pid, seq) join queen.partition_lookup l on l.partition_id = x.pid
            join queen.consumer_groups_metadata m on m.queue_id = l.queue_id and m.name = group_name
        where c.partition_id = x.pid and c.group_id = m.group_id and (x.seq > c.acked_seq or c.start_from is not null);
    get diagnostics moved = row_count;
    return moved;
end $$;
