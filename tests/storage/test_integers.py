"""No integer of four bytes without a reason why what it holds cannot outgrow it."""

from __future__ import annotations

import re
from typing import Final

from queenmq import sql
from queenmq.storage.store import Store

_OPTION: Final = "an option that users set; larger values are refused when it is set"
_CALL: Final = "bounded by what one call is given or asked for, which is far below 2,147,483,647"
_SEGMENT: Final = "a place in a segment, which holds at most 65,536 messages"
_RETRIES: Final = "counting stops at 1,000,000,000"
_TAG: Final = "a hash, not a count"
_ROWS: Final = "the number of rows that one statement touched"

COLUMNS: Final = {
    "archive_holds.cap_seconds": _OPTION,
    "consumer_groups_metadata.tag": _TAG,
    "dead_letter_queue.retry_count": _RETRIES,
    "operation_queue.estimated_size": "bytes of one request, which the server limits",
    "operation_queue.max_retries": _OPTION,
    "operation_queue.priority": _OPTION,
    "operation_queue.retry_count": "at most max_retries",
    "operation_queue.timeout_seconds": _OPTION,
    "partition_consumers.batch_limit": "at most 65,536, or half of the acks of one request",
    "partition_lookup.tag": _TAG,
    "queues.completed_retention_seconds": _OPTION,
    "queues.dedup_window_seconds": _OPTION,
    "queues.delayed_processing": _OPTION,
    "queues.lease_time": _OPTION,
    "queues.max_wait_time_seconds": _OPTION,
    "queues.priority": _OPTION,
    "queues.retention_seconds": _OPTION,
    "queues.retry_delay": _OPTION,
    "queues.retry_limit": _OPTION,
    "queues.ttl": _OPTION,
    "queues.window_buffer": _OPTION,
    "schema_migrations.number": "one per migration file",
    "schema_migrations.requires": "a version, one per release",
    "schema_migrations.steps_done": "one per step of a migration file",
    "schema_migrations.version": "a version, one per release",
    "segments.base_idx": _SEGMENT,
    "segments.n": _SEGMENT,
}

_SEGMENTS_OF_A_CALL: Final = "(segment of the call << 16) + place: a call has at most 32,767 segments"
# Parameters, result columns and variables of procedures, by name.
NAMES: Final = {
    **dict.fromkeys(["attempt", "failures", "again_failures"], _RETRIES),
    **dict.fromkeys(["base_idx", "idx", "n", "ns", "o", "befores", "afters"], _SEGMENT),
    **dict.fromkeys(["places", "first", "count"], _SEGMENT),
    **dict.fromkeys(["tag", "tags", "req_tag", "gtag", "empty_tag", "req_group_tag"], _TAG),
    **dict.fromkeys(["hold_cap", "seconds", "wait_ms", "wait", "priorities", "retry_limits", "timeouts"], _OPTION),
    "req_hold": "seconds that the server chooses",
    **dict.fromkeys(["ord", "run", "request", "requests", "r", "i", "req_from", "req_to"], _CALL),
    **dict.fromkeys(["answered", "looked", "page", "skip", "batch", "budget", "most"], _CALL),
    **dict.fromkeys(["want", "wish", "wanted", "got", "claimed", "seen", "exhausted"], _CALL),
    **dict.fromkeys(["own", "crowd", "lookalikes", "max_rows", "max_streams"], _CALL),
    **dict.fromkeys(["req_batch", "req_max", "max_blocks", "max_claimed", "max_messages", "max_partitions"], _CALL),
    **dict.fromkeys(["max_reclaimed", "max_removed", "kept", "shortest", "evicted", "counts", "counted"], _CALL),
    **dict.fromkeys(["messages", "segments", "cursors"], _CALL),
    **dict.fromkeys(["moved", "gone", "removed", "repaired", "total", "renewed", "dead_letters"], _ROWS),
    **dict.fromkeys(["consumed_by", "total_groups"], "groups of one queue"),
    "key_pos": _SEGMENTS_OF_A_CALL,
}
# What is called by servers of version 1 only, whose numbers of queues and groups are integers.
OLDER: Final = set(
    re.findall(
        r"^create or replace function queen\.(\w+)",
        next(script.text for script in sql.procedures() if script.name == "99_older_servers"),
        re.MULTILINE,
    )
)

_COLUMNS: Final = """
    select c.relname || '.' || a.attname from pg_attribute a join pg_class c on c.oid = a.attrelid
    where c.relnamespace = 'queen'::regnamespace and c.relkind in ('r', 'p', 'v', 'm')
    and a.attnum > 0 and not a.attisdropped and a.atttypid = any ('{int2,int4,_int2,_int4}'::regtype[])
"""
_PARAMETERS: Final = """
    select p.proname || '.' || x.name from pg_proc p
    cross join lateral unnest(coalesce(p.proallargtypes, p.proargtypes::oid[]), p.proargnames) x (type, name)
    where p.pronamespace = 'queen'::regnamespace and x.type = any ('{int2,int4,_int2,_int4}'::regtype[])
    union
    select p.proname || '.' || x.found[1] from pg_proc p
    cross join lateral regexp_matches(p.prosrc, '^\\s+(\\w+) (?:integer|smallint|int|int2|int4)\\M', 'gn') x (found)
    where p.pronamespace = 'queen'::regnamespace
"""
_SEQUENCES: Final = """
    select s.seqrelid::regclass::text from pg_sequence s join pg_class c on c.oid = s.seqrelid
    where c.relnamespace = 'queen'::regnamespace and (s.seqtypid <> 'bigint'::regtype or s.seqmax < 9223372036854775807)
"""


async def listed(store: Store, query: str) -> set[str]:
    return {row[0] for row in await store.pool.fetch(query)}


async def test_every_integer_column_has_a_reason(store: Store) -> None:
    assert await listed(store, _COLUMNS) == set(COLUMNS)


async def test_every_integer_of_a_procedure_has_a_reason(store: Store) -> None:
    found = [name.split(".") for name in await listed(store, _PARAMETERS)]
    assert {f"{function}.{name}" for function, name in found if function not in OLDER and name not in NAMES} == set()
    assert set(NAMES) - {name for _, name in found} == set()


async def test_sequences_do_not_end(store: Store) -> None:
    assert await listed(store, _SEQUENCES) == set()
