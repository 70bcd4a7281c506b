-- For people and scripts at a SQL prompt: take the next messages of a queue for a group, acknowledged as they are
-- delivered. A consumer that must not lose a message when it crashes pops with a lease instead.
create or replace function queen.consume(queue text, consumer_group text default '__QUEUE_MODE__', batch integer default 1)
returns table (partition text, seq bigint, id uuid, transaction_id text, payload jsonb, created_at timestamptz)
language plpgsql as $$
#variable_conflict use_column
declare
    gid bigint;
begin
    if batch < 1 then
        raise exception 'batch must be at least 1, not %', batch using errcode = 'check_violation';
    end if;
    select g.group_id into gid from queen.register_group_v2(queue, consumer_group, 'all', null) g;
    if not found then
        return;
    end if;
    return query
        select d.partition_name, d.last_seq - d.n + m.o, i.id, coalesce(nullif(m.tx, ''), i.id::text), m.payload::jsonb, d.created_at
        from queen.pop_v2(array[gid], null, '{1}', '{1}', '{null}', null, array[batch], array[batch], array[gen_random_uuid()], null, '{true}', null,
            null, null) d,
        lateral rows from (
            string_to_table(convert_from(d.data, 'UTF8'), E'\x1e'), string_to_table(convert_from(d.tx, 'UTF8'), E'\x1e')
        ) with ordinality m (payload, tx, o),
        lateral (select queen.message_id(d.base, d.base_idx + m.o::integer - 1) as id) i
        where d.last_seq - d.n + m.o > d.from_seq and d.last_seq - d.n + m.o <= d.to_seq;
end $$;
comment on function queen.consume(text, text, integer) is 'take the next messages of a queue for a group, acknowledged on delivery';
