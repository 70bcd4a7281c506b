-- Small functions that the other procedures share.

-- A UUIDv7 whose last 16 bits are zero: the base of a segment, room for 65,536 messages. The three digits behind the version are
-- the mark by which an id of this server is told from other UUIDs; queenmq.domain.ids has the same.
create or replace function queen.segment_base() returns uuid
language sql volatile parallel safe as $$
    select (lpad(to_hex((extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0')
            || '7e9c'
            || to_hex(8 + (get_byte(decode(substr(r, 5, 2), 'hex'), 0) & 3)) || substr(r, 7, 11)
            || '0000')::uuid
    from (select replace(gen_random_uuid()::text, '-', '') as r) x
$$;

-- The id of a message: the base of its segment with its index in the last 16 bits.
create or replace function queen.message_id(base uuid, idx integer) returns uuid
language sql immutable parallel safe as $$
    select (left(base::text, 32) || lpad(to_hex(idx), 4, '0'))::uuid
$$;

-- The index of a message in its flush: the last 16 bits of its id.
create or replace function queen.message_index(id uuid) returns integer
language sql immutable parallel safe as $$
    select ('x' || right(id::text, 4))::bit(16)::integer
$$;

-- The key under which the ids of a flush are remembered: its base with a variant that the key of no transactionId has.
-- queenmq.domain.ids computes the same.
create or replace function queen.base_key(id uuid) returns uuid
language sql immutable parallel safe as $$
    select (substr(id::text, 1, 19) || translate(substr(id::text, 20, 1), '89ab', '0123') || substr(id::text, 21, 12) || '0000')::uuid
$$;

-- The key under which a transactionId is remembered: the UUID itself when it is one in canonical form, otherwise
-- 124 bits of its SHA-256, marked by a variant that canonical UUIDs do not have. queenmq.domain.ids computes the same.
create or replace function queen.dedup_key(transaction_id text) returns uuid
language sql immutable parallel safe as $$
    select case
        when transaction_id ~ '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$'
            then transaction_id::uuid
        else overlay(left(encode(sha256(convert_to(transaction_id, 'UTF8')), 'hex'), 32) placing 'f' from 17)::uuid
    end
$$;

-- A hash of the names of a partition: who takes a partition's number for that of another name is found out by it.
-- queenmq.domain.ids computes the same.
create or replace function queen.partition_tag(queue text, partition text) returns integer
language sql immutable parallel safe as $$
    select ('x' || left(encode(sha256(convert_to(queue || E'\x1e' || partition, 'UTF8')), 'hex'), 8))::bit(32)::integer
$$;

-- The newest sequence number created at or before a moment, 0 when there is none. created_at never decreases within a
-- partition, so this is a binary search over the primary key and needs no index on time.
create or replace function queen.seq_at(pid bigint, moment timestamptz) returns bigint
language plpgsql stable as $$
declare
    lo bigint;          -- every message up to lo was created at or before the moment
    hi bigint;          -- every message above hi was created after it
    mid bigint;
    probe record;
begin
    select s.last_seq - s.n as below, s.created_at into probe
        from queen.segments s where s.partition_id = pid order by s.last_seq limit 1;
    if not found or probe.created_at > moment then
        return 0;
    end if;
    lo := probe.below;
    select s.last_seq, s.created_at into probe
        from queen.segments s where s.partition_id = pid order by s.last_seq desc limit 1;
    if probe.created_at <= moment then
        return probe.last_seq;
    end if;
    hi := probe.last_seq;
    while lo < hi loop
        mid := (lo + hi) / 2;
        select s.last_seq, s.last_seq - s.n as below, s.created_at into probe
            from queen.segments s where s.partition_id = pid and s.last_seq > mid order by s.last_seq limit 1;
        if probe.created_at <= moment then
            lo := probe.last_seq;
        else
            hi := least(mid, probe.below);
        end if;
    end loop;
    return lo;
end $$;

-- Message number o (from 1) of a joined column, NULL when it has none.
create or replace function queen.entry(joined bytea, o integer) returns text
language sql immutable parallel safe as $$
    select nullif(split_part(convert_from(joined, 'UTF8'), E'\x1e', o), '')
$$;

-- One message by its place, with its own copy of everything.
create or replace function queen.message_at(pid bigint, at_seq bigint)
returns table (id uuid, transaction_id text, trace_id uuid, producer_sub text, payload text, encrypted boolean, created_at timestamptz)
language sql stable as $$
    select m.id, coalesce(queen.entry(s.tx, m.o), m.id::text), queen.entry(s.trace_ids, m.o)::uuid,
           queen.entry(s.subs, m.o), queen.entry(s.data, m.o), coalesce(substr(s.enc, m.o, 1) = '1', false), s.created_at
    from (select * from queen.segments where partition_id = pid and last_seq >= at_seq order by last_seq limit 1) s,
         lateral (select (at_seq - s.last_seq + s.n)::integer as o,
                         queen.message_id(s.base, (s.base_idx + at_seq - s.last_seq + s.n - 1)::integer) as id) m
    where at_seq > s.last_seq - s.n
$$;

-- The number of the message for which a partition remembers the key of a transactionId, NULL when it does not. The message itself
-- may be gone. Rows for a base that were written before migration 0008 do not say which ids they stand for: there only
-- messages that are stored count.
create or replace function queen.remembered(pid bigint, key uuid) returns bigint
language plpgsql stable as $$
declare
    idx integer := queen.message_index(key);
    found_seq bigint;
begin
    select d.seq into found_seq from queen.dedup d where d.h = key and d.partition_id = pid;
    if not found then
        select d.seq + idx into found_seq from queen.dedup d
            where d.h = queen.base_key(key) and d.partition_id = pid and d.given @> idx;
    end if;
    if not found then
        select d.seq + idx into found_seq from queen.dedup d, lateral queen.message_at(pid, d.seq + idx) m
            where d.h = queen.message_id(key, 0) and d.partition_id = pid and d.given is null
                and m.id = key and m.transaction_id = key::text;
    end if;
    return found_seq;
end $$;

-- Where a transactionId stands in a partition; NULL when it holds no such message.
create or replace function queen.locate(pid bigint, transaction_id text) returns bigint
language plpgsql stable as $$
declare
    found_seq bigint := queen.remembered(pid, queen.dedup_key(transaction_id));
begin
    return (select found_seq from queen.message_at(pid, found_seq) m where m.transaction_id = locate.transaction_id);
end $$;
