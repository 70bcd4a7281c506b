-- Acks and pushes that happen together or not at all.

drop function if exists queen.transaction_v1(uuid[], boolean, bigint[], integer[], uuid[], jsonb[],
    bigint[], integer[], uuid[], uuid[], bytea[], bytea[], bytea[], bytea[], text[], uuid[], integer[], integer[]);
drop function if exists queen.transaction_v1(uuid[], boolean, bigint[], integer[], uuid[], jsonb[],
    bigint[], integer[], uuid[], uuid[], bytea[], bytea[], bytea[], bytea[], text[], uuid[], integer[], integer[], integer[], integer[]);

-- required: leases that must be held now (on a replay after a lost answer, or have been the last and ended by an ack, which
-- may be that of the first attempt). ack_*: as ack_v2, every run with verdicts; push_*: as push_v2. An ack that cannot be
-- applied fails the whole call with QM005 and the reason; unique_violation as in push_v2.
create or replace function queen.transaction_v2(
    required uuid[], replay boolean,
    ack_pids bigint[], ack_gids bigint[], ack_leases uuid[], ack_verdicts jsonb[],
    pids bigint[], ns integer[], bases uuid[], last_ids uuid[], txs bytea[], datas bytea[], traces bytea[], subs bytea[],
    encs text[], keys uuid[], key_pos integer[], bounded_queues bigint[], befores integer[], afters integer[],
    tags integer[] default null, givens int4multirange[] default null, lookalikes integer[] default null,
    out settled jsonb[], out push_pids bigint[], out push_lasts bigint[], out push_times timestamptz[]
)
language plpgsql as $$
declare
    t timestamptz;
    lease uuid;
    one jsonb;
    bad jsonb;
begin
    perform 1 from queen.queue_depth d where d.queue_id = any (bounded_queues) order by d.queue_id for update;
    perform 1 from queen.partition_lookup l where l.partition_id = any (pids || ack_pids) order by l.partition_id for no key update;
    perform 1 from queen.partition_consumers c
        join unnest(ack_pids, ack_gids) a (pid, gid) on c.partition_id = a.pid and c.group_id = a.gid
        order by c.partition_id, c.group_id for update of c;
    t := clock_timestamp();
    foreach lease in array required loop
        if not exists (select from queen.partition_consumers c where c.lease_id = lease and c.lease_expires_at > t)
            and not (replay and exists (
                select from queen.partition_consumers c where c.partition_id = any (ack_pids) and c.last_lease_id = lease
                and c.lapsed_lease_id is distinct from lease))
        then
            raise exception 'required lease % is not held', lease using errcode = 'QM004', detail = lease::text;
        end if;
    end loop;
    settled := '{}';
    for i in 1 .. coalesce(cardinality(ack_pids), 0) loop
        one := queen.settle(ack_pids[i], ack_gids[i], ack_leases[i], ack_verdicts[i], replay);
        if one ->> 'outcome' = 'unknown' then
            raise exception 'Invalid or expired lease' using errcode = 'QM005', detail = i::text;
        end if;
        select x into bad from jsonb_array_elements(one -> 'items') x where not (x ->> 'ok')::boolean limit 1;
        if found then
            raise exception '%', bad ->> 'error' using errcode = 'QM005', detail = i::text;
        end if;
        settled := settled || one;
    end loop;
    if cardinality(pids) > 0 then
        select array_agg(p.partition_id), array_agg(p.last_seq), array_agg(p.created_at) into push_pids, push_lasts, push_times
            from queen.push_v2(pids, ns, bases, last_ids, txs, datas, traces, subs, encs, keys, key_pos, bounded_queues, befores, afters,
                tags, givens, lookalikes) p;
    end if;
end $$;
