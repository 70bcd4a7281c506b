-- Small functions that the other procedures share.

-- A UUIDv7 whose last 16 bits are zero: the base of a segment, room for 65,536 messages.
create or replace function queen.segment_base() returns uuid
language sql volatile parallel safe as $$
    select (lpad(to_hex((extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0')
            || '7' || substr(r, 2, 3)
            || to_hex(8 + (get_byte(decode(substr(r, 5, 2), 'hex'), 0) & 3)) || substr(r, 7, 11)
            || '0000')::uuid
    from (select replace(gen_random_uuid()::text, '-', '') as r) x
$$;

-- The id of a message: the base of its segment with its index in the last 16 bits.
create or replace function queen.message_id(base uuid, idx integer) returns uuid
language sql immutable parallel safe as $$
    select (left(base::text, 32) || lpad(to_hex(idx), 4, '0'))::uuid
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

-- Where a transactionId stands in a partition; NULL when it holds no such message.
create or replace function queen.locate(pid bigint, transaction_id text) returns bigint
language plpgsql stable as $$
declare
    found_seq bigint;
begin
    select d.seq into found_seq from queen.dedup d
        where d.h = queen.dedup_key(transaction_id) and d.partition_id = pid;
    if found_seq is null and transaction_id ~ '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$' then
        select d.seq + ('x' || right(transaction_id, 4))::bit(16)::integer into found_seq from queen.dedup d
            where d.h = queen.message_id(transaction_id::uuid, 0) and d.partition_id = pid;
    end if;
    return (select found_seq from queen.message_at(pid, found_seq) m where m.transaction_id = locate.transaction_id);
end $$;
