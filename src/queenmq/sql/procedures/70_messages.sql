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
    'Every stored message. INSERT (queue, partition, payload, transaction_id, trace_id) pushes; a duplicate transaction_id is not stored again.';

-- One inserted row is one push: the same procedure, so the same order, dedup, limits and wake-ups.
create or replace function queen.messages_insert() returns trigger
language plpgsql as $$
declare
    place record;
    b uuid := queen.segment_base();
    key uuid;
    pushed record;
begin
    if coalesce(new.queue, '') = '' or new.queue ~ '[[:cntrl:]]' or char_length(new.queue) > 255 then
        raise exception 'queue must be a text of 1 to 255 characters without control characters' using errcode = 'check_violation';
    end if;
    new.partition := coalesce(new.partition, 'Default');
    if new.partition = '' or new.partition ~ '[[:cntrl:]]' or char_length(new.partition) > 255 then
        raise exception 'partition must be a text of 1 to 255 characters without control characters' using errcode = 'check_violation';
    end if;
    if char_length(new.transaction_id) > 255 or new.transaction_id ~ '[[:cntrl:]]' then
        raise exception 'transaction_id must be a text of up to 255 characters without control characters' using errcode = 'check_violation';
    end if;
    select * into place from queen.find_partitions_v1(array[new.queue], array[new.partition]);
    if not found then
        select * into place from queen.ensure_partitions_v1(array[new.queue], array[new.partition]);
    end if;
    if place.encryption_enabled then
        raise exception 'queue % is encrypted: push to it through the server, which holds the key', new.queue using errcode = 'QM009';
    end if;
    new.transaction_id := nullif(new.transaction_id, '');
    key := coalesce(queen.dedup_key(new.transaction_id), b);
    perform 1 from queen.queue_depth d where d.queue_id = place.queue_id for update;
    -- the partition's row lock decides between two inserts of one transaction_id; the loser then sees the winner
    perform 1 from queen.partition_lookup l where l.partition_id = place.partition_id for no key update;
    if exists (select from queen.dedup d where d.h = key and d.partition_id = place.partition_id) then
        return null;
    end if;
    new.payload := coalesce(new.payload, 'null');
    select * into pushed from queen.push_v1(
        array[place.partition_id], array[1], array[b], array[b], array[convert_to(new.transaction_id, 'UTF8')],
        array[convert_to(new.payload::text, 'UTF8')], array[convert_to(new.trace_id::text, 'UTF8')], array[convert_to(new.producer_sub, 'UTF8')],
        array[null::text], array[key], array[0], case when place.bounded then array[place.queue_id] else '{}' end);
    new.seq := pushed.last_seq;
    new.id := b;
    new.transaction_id := coalesce(new.transaction_id, b::text);
    new.created_at := pushed.created_at;
    new.partition_id := place.uid;
    return new;
end $$;

create or replace trigger messages_insert instead of insert on queen.messages
    for each row execute function queen.messages_insert();
