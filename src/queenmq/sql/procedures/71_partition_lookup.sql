-- Proof and repair of queen.partition_lookup. Both may be called at any time, as often as one likes.

-- Every row that is wrong, with the reason; no rows when all is well. A row is right when it covers the newest stored message of
-- its partition and, where that message is the last one numbered, names its id and time.
create or replace function queen.partition_lookup_check() returns table (partition_id bigint, problem text)
language sql stable as $$
    select p.partition_id,
           case when l.partition_id is null then 'no row in partition_lookup'
                when l.queue_id <> p.queue_id then format('belongs to queue %s, not %s', p.queue_id, l.queue_id)
                when s.last_seq > l.last_seq then format('last message is %s, not %s', s.last_seq, l.last_seq)
                when l.last_seq < l.trimmed_seq then format('last message %s is below the trimmed %s', l.last_seq, l.trimmed_seq)
                when s.id <> l.last_message_id then format('last message id is %s, not %s', s.id, l.last_message_id)
                when s.created_at > l.last_message_created_at then format('last message was created at %s, not %s', s.created_at, l.last_message_created_at)
           end
    from queen.partitions p
    left join queen.partition_lookup l using (partition_id)
    left join lateral (
        select s.last_seq, s.created_at,
               case when s.last_seq = l.last_seq then queen.message_id(s.base, s.base_idx + s.n - 1) end as id
        from queen.segments s where s.partition_id = p.partition_id order by s.last_seq desc limit 1
    ) s on true
    where l.partition_id is null or l.queue_id <> p.queue_id or s.last_seq > l.last_seq or l.last_seq < l.trimmed_seq
        or s.id <> l.last_message_id or s.created_at > l.last_message_created_at
    union all
    select l.partition_id, 'no such partition' from queen.partition_lookup l
    where not exists (select from queen.partitions p where p.partition_id = l.partition_id)
$$;
comment on function queen.partition_lookup_check() is 'rows of partition_lookup that disagree with the stored messages; always none';

-- Repair what the check finds, under the locks that pushes take. Returns the number of rows repaired. Sequence numbers that
-- were given out stay given out: last_seq is raised, never lowered.
create or replace function queen.partition_lookup_resync() returns integer
language plpgsql as $$
declare
    wrong record;
    repaired integer := 0;
begin
    for wrong in select c.partition_id, p.queue_id, q.max_size > 0 as bounded from queen.partition_lookup_check() c
        left join queen.partitions p on p.partition_id = c.partition_id
        left join queen.queues q on q.queue_id = p.queue_id order by c.partition_id
    loop
        repaired := repaired + 1;
        if wrong.queue_id is null then
            delete from queen.partition_lookup l where l.partition_id = wrong.partition_id;
            continue;
        end if;
        insert into queen.partition_lookup (partition_id, queue_id, bounded) values (wrong.partition_id, wrong.queue_id, wrong.bounded)
            on conflict (partition_id) do nothing;
        perform 1 from queen.partition_lookup l where l.partition_id = wrong.partition_id for no key update;
        update queen.partition_lookup l set queue_id = wrong.queue_id, bounded = wrong.bounded,
            last_seq = greatest(l.last_seq, l.trimmed_seq, s.last_seq),
            last_message_id = case when coalesce(s.last_seq, 0) >= l.last_seq then s.id else l.last_message_id end,
            last_message_created_at = greatest(l.last_message_created_at, s.created_at)
            from (select max(x.last_seq) as last_seq, max(x.id::text)::uuid as id, max(x.created_at) as created_at
                  from (select g.last_seq, queen.message_id(g.base, g.base_idx + g.n - 1) as id, g.created_at from queen.segments g
                        where g.partition_id = wrong.partition_id order by g.last_seq desc limit 1) x) s
            where l.partition_id = wrong.partition_id;
        update queen.partition_consumers c set ready_at = clock_timestamp()
            where c.partition_id = wrong.partition_id and c.ready_at is null;
    end loop;
    return repaired;
end $$;
comment on function queen.partition_lookup_resync() is 'repairs what partition_lookup_check() finds; safe to repeat, and while traffic runs';
