-- queen.messages: one row per message, and a place to INSERT messages from SQL.

create or replace view queen.messages as
select q.name as queue, p.name as partition, s.last_seq - s.n + m.o as seq, i.id,
       coalesce(nullif(m.tx, ''), i.id::text) as transaction_id, nullif(m.trace, '')::uuid as trace_id,
       m.payload::jsonb as payload, s.created_at, nullif(m.sub, '') as producer_sub,
       coalesce(substr(s.enc, m.o::integer, 1) = '1', false) as encrypted,
       q.namespace, q.task, p.uid as partition_id
from queen.queues q
join queen.partitions p on p.queue_id = q.queue_id
join queen.segments s on s.partition_id = p.partition_id,
lateral rows from (
    string_to_table(convert_from(s.data, 'UTF8'), E'\x1e'), string_to_table(convert_from(s.tx, 'UTF8'), E'\x1e'),
    string_to_table(convert_from(s.trace_ids, 'UTF8'), E'\x1e'), string_to_table(convert_from(s.subs, 'UTF8'), E'\x1e')
) with ordinality m (payload, tx, trace, sub, o),
lateral (select queen.message_id(s.base, s.base_idx + m.o::integer - 1) as id) i;

comment on view queen.messages is
    'Every stored message. INSERT (queue, partition, payload, transaction_id, trace_id, producer_sub) pushes; a duplicate transaction_id is not stored again.';

-- The rule for names that users choose, as queenmq.wire.names has it.
create or replace function queen.check_text(field text, value text, shortest integer) returns void
language plpgsql immutable as $$
begin
    if char_length(value) not between shortest and 255 or value ~ '[\u0001-\u001f\u007f-\u009f]' then
        raise exception '% must be a text of % to 255 characters without control characters', field, shortest using errcode = 'check_violation';
    end if;
end $$;

-- One inserted row is one push: the same procedure, so the same order, dedup, limits and wake-ups. Rows are locked as they come: a
-- statement or transaction that inserts into several partitions may meet another in the opposite order, and one of the two
-- then fails with deadlock_detected and is to be repeated.
--
-- It runs with the rights of its owner, so that INSERT on the view is all that a producer needs. The fixed search_path keeps names
-- and operators of the caller out of everything it calls, except the types of variables: PL/pgSQL looks those up at the first call
-- of a function in a session, which the caller can make under a search_path of its own. So every function that is reached from
-- here names the types of its variables with their schema, unless they are keywords of SQL.
create or replace function queen.messages_insert() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    place pg_catalog.record;
    b pg_catalog.uuid := queen.segment_base();
    key pg_catalog.uuid;
    pushed pg_catalog.record;
begin
    new.partition := coalesce(new.partition, 'Default');
    new.transaction_id := nullif(new.transaction_id, '');
    new.producer_sub := nullif(new.producer_sub, '');
    perform queen.check_text('queue', coalesce(new.queue, ''), 1), queen.check_text('partition', new.partition, 1),
            queen.check_text('transaction_id', new.transaction_id, 0), queen.check_text('producer_sub', new.producer_sub, 0);
    select * into place from queen.find_partitions_v2(array[new.queue], array[new.partition]);
    if not found then
        select * into place from queen.ensure_partitions_v2(array[new.queue], array[new.partition]);
    end if;
    if place.encryption_enabled then
        raise exception 'queue % is encrypted: push to it through the server, which holds the key', new.queue using errcode = 'QM009';
    end if;
    key := coalesce(queen.dedup_key(new.transaction_id), queen.base_key(b));
    perform 1 from queen.queue_depth d where d.queue_id = place.queue_id for update;
    -- the partition's row lock decides between two inserts of one transaction_id; the loser then sees the winner
    perform 1 from queen.partition_lookup l where l.partition_id = place.partition_id for no key update;
    if queen.remembered(place.partition_id, key) is not null then
        return null;
    end if;
    new.payload := coalesce(new.payload, 'null');
    select * into pushed from queen.push_v2(
        array[place.partition_id], array[1], array[b], array[b], array[convert_to(new.transaction_id, 'UTF8')],
        array[convert_to(new.payload::text, 'UTF8')], array[convert_to(new.trace_id::text, 'UTF8')], array[convert_to(new.producer_sub, 'UTF8')],
        array[null::text], array[key], array[0], case when place.bounded then array[place.queue_id] else '{}' end,
        givens => case when new.transaction_id is null then array['{[0,1)}'::int4multirange] end);
    new.seq := pushed.last_seq;
    new.id := b;
    new.transaction_id := coalesce(new.transaction_id, b::text);
    new.created_at := pushed.created_at;
    new.encrypted := false;
    new.partition_id := place.uid;
    select q.namespace, q.task into new.namespace, new.task from queen.queues q where q.queue_id = place.queue_id;
    return new;
end $$;

-- A role that may execute the function could attach it to a table of its own, and push without the right to.
revoke execute on function queen.messages_insert() from public;

create or replace trigger messages_insert instead of insert on queen.messages
    for each row execute function queen.messages_insert();
