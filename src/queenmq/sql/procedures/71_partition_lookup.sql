-- Proof and repair of queen.partition_lookup. Both may be called at any time, as often as one likes.

-- What a row must agree with: the newest and the first stored segment of its partition, and the highest number that is known
-- to have been given out: to a message, past which a cursor stands, or of a dead letter.
create or replace function queen.partition_facts(pid bigint)
returns table (last_seq bigint, id uuid, created_at timestamptz, below_first bigint, given_out bigint)
language sql stable as $$
    select n.last_seq, n.id, n.created_at, f.below,
           greatest(n.last_seq, (select max(c.acked_seq) from queen.partition_consumers c where c.partition_id = pid),
                    (select max(d.seq) from queen.dead_letter_queue d where d.partition_id = pid), 0)
    from (select 1) one
    left join lateral (
        select s.last_seq, queen.message_id(s.base, s.base_idx + s.n - 1) as id, s.created_at
        from queen.segments s where s.partition_id = pid order by s.last_seq desc limit 1) n on true
    left join lateral (
        select s.last_seq - s.n as below from queen.segments s where s.partition_id = pid order by s.last_seq limit 1) f on true
$$;

-- Every row that is wrong, with the reason; no rows when all is well. A number that was given out stays given out, so a last
-- message that retention, eviction or a person has removed leaves its row as it is: then its id cannot be checked any more, only
-- that it is not the id of an older message. Times never go back, so one that lies before the newest message is wrong, and one
-- that lies ahead of the clock: the next messages would be created in the future.
create or replace function queen.partition_lookup_check() returns table (partition_id bigint, problem text)
language sql stable as $$
    select x.partition_id, x.problem from (
        select p.partition_id,
               case when l.partition_id is null then 'no row in partition_lookup'
                    when l.queue_id <> p.queue_id then format('belongs to queue %s, not %s', p.queue_id, l.queue_id)
                    when l.bounded <> (q.max_size > 0) then format('bounded is %s, but maxSize is %s', l.bounded, q.max_size)
                    when l.encrypted <> q.encryption_enabled
                        then format('encrypted is %s, but encryptionEnabled is %s', l.encrypted, q.encryption_enabled)
                    when l.tag <> queen.partition_tag(q.name, p.name)
                        then format('tag is %s, not %s', queen.partition_tag(q.name, p.name), l.tag)
                    when l.last_seq < f.given_out then format('last message is %s, not %s', f.given_out, l.last_seq)
                    when l.last_seq < l.trimmed_seq then format('last message %s is below the trimmed %s', l.last_seq, l.trimmed_seq)
                    when l.trimmed_seq > f.below_first then format('trimmed up to %s, but message %s is there', l.trimmed_seq, f.below_first + 1)
                    when l.dedup_floor > l.trimmed_seq then format('forgets transactionIds up to %s, trimmed is %s', l.dedup_floor, l.trimmed_seq)
                    when f.last_seq = l.last_seq and f.id is distinct from l.last_message_id
                        then format('last message id is %s, not %s', f.id, l.last_message_id)
                    when f.last_seq < l.last_seq and f.id = l.last_message_id
                        then format('last message id %s is the id of message %s, not %s', f.id, f.last_seq, l.last_seq)
                    when f.created_at > l.last_message_created_at
                        or (f.last_seq = l.last_seq and l.last_message_created_at > greatest(f.created_at, clock_timestamp()))
                        then format('last message was created at %s, not %s', f.created_at, l.last_message_created_at)
               end as problem
        from queen.partitions p join queen.queues q using (queue_id)
        left join queen.partition_lookup l using (partition_id)
        cross join lateral queen.partition_facts(p.partition_id) f
    ) x where x.problem is not null
    union all
    select l.partition_id, 'no such partition' from queen.partition_lookup l
    where not exists (select from queen.partitions p where p.partition_id = l.partition_id)
$$;
comment on function queen.partition_lookup_check() is 'rows of partition_lookup that disagree with the stored messages; always none';

-- Repair what the check finds, under the locks that pushes take. Returns the number of rows repaired. Numbers that were given out
-- stay given out: last_seq is raised, never lowered, since a cursor may stand there. While a row was missing or named
-- another queue, groups may have registered without a cursor on the partition; they get it.
create or replace function queen.partition_lookup_resync() returns integer
language plpgsql as $$
declare
    wrong bigint[];
    pid bigint;
    p record;
    f record;
    repaired integer := 0;
begin
    select array_agg(c.partition_id order by c.partition_id) into wrong from queen.partition_lookup_check() c;
    perform 1 from queen.queues q where q.queue_id in (select x.queue_id from queen.partitions x where x.partition_id = any (wrong))
        order by q.name for no key update;
    perform 1 from queen.partition_lookup l where l.partition_id = any (wrong) order by l.partition_id for no key update;
    foreach pid in array coalesce(wrong, '{}') loop
        repaired := repaired + 1;
        select x.queue_id, q.max_size > 0 as bounded, q.encryption_enabled as encrypted,
            queen.partition_tag(q.name, x.name) as tag into p
            from queen.partitions x join queen.queues q using (queue_id) where x.partition_id = pid;
        if not found then
            delete from queen.partition_lookup l where l.partition_id = pid;
            continue;
        end if;
        select * into f from queen.partition_facts(pid);
        insert into queen.partition_lookup (partition_id, queue_id, trimmed_seq) values (pid, p.queue_id, coalesce(f.below_first, f.given_out))
            on conflict (partition_id) do nothing;
        update queen.partition_lookup l set queue_id = p.queue_id, bounded = p.bounded, encrypted = p.encrypted, tag = p.tag,
            last_seq = greatest(l.last_seq, f.given_out),
            trimmed_seq = least(l.trimmed_seq, f.below_first, greatest(l.last_seq, f.given_out)),
            dedup_floor = least(l.dedup_floor, l.trimmed_seq, f.below_first, greatest(l.last_seq, f.given_out)),
            last_message_id = case when f.last_seq >= l.last_seq and f.last_seq = f.given_out then f.id
                                   when f.id = l.last_message_id then null else l.last_message_id end,
            last_message_created_at = case when f.last_seq >= l.last_seq and f.last_seq = f.given_out then f.created_at
                                           else greatest(l.last_message_created_at, f.created_at) end
            where l.partition_id = pid;
        insert into queen.partition_consumers (partition_id, group_id, queue_id, start_from)
            select pid, g.group_id, p.queue_id,
                   case when g.subscription_mode is null then 'infinity' else g.subscription_timestamp end
            from queen.consumer_groups_metadata g where g.queue_id = p.queue_id and g.registered
            on conflict (partition_id, group_id) do nothing;
        perform 1 from queen.partition_consumers c where c.partition_id = pid order by c.group_id for update;
        update queen.partition_consumers c set ready_at = clock_timestamp() where c.partition_id = pid and c.ready_at is null;
    end loop;
    return repaired;
end $$;
comment on function queen.partition_lookup_resync() is 'repairs what partition_lookup_check() finds; safe to repeat, and while traffic runs';
