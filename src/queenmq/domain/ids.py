"""Ids. A segment's base is a UUIDv7 with 16 zero bits at its end; a message's id is that base with its index there.

So the server stamps one id per flush and partition, a retry carries the same ids, and no id needs to be stored per
message. A message without a transactionId has its id for one. A client may push such an id again, so all of them carry
a mark: only transactionIds with that mark are compared with the ids that the server gave.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import sha256
from typing import Final

import uuid_utils

MESSAGES_PER_SEGMENT: Final = 65536
_TAGS: Final = 16_384
SUFFIXES: Final = tuple(f"{index:04x}" for index in range(MESSAGES_PER_SEGMENT))

MARK: Final = b"-7e9c-"
"""The third group of every id that the server makes: the UUID's version, and twelve bits that are random elsewhere."""
_MARK: Final = MARK.decode()

_is_canonical_uuid: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[89ab][0-9a-f]{3}-[0-9a-f]{12}").fullmatch
_is_uuid: Final = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}").fullmatch

_BASE_VARIANTS: Final = {"8": "0", "9": "1", "a": "2", "b": "3"}

# Lower-case hexadecimal digits as x, so that many UUIDs are compared with their shape at once.
_SHAPE: Final = bytes(120 if byte in b"0123456789abcdef" else byte if byte in b"-\x1e" else 63 for byte in range(256))
_UUID_SHAPE: Final = b"xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx\x1e"


def new_id() -> str:
    """A time-ordered id for anything that is not a message."""
    return str(uuid_utils.uuid7())


def new_auto_lease() -> str:
    """The id of a lease that its server acknowledges by itself, known by its version: `held_by_auto_acks` in SQL."""
    lease = new_id()
    return f"{lease[:14]}8{lease[15:]}"


def new_segment_base() -> str:
    """`queen.segment_base` makes the same in SQL."""
    text = str(uuid_utils.uuid7())
    return text[:13] + _MARK + text[19:32] + "0000"


def base_key(base: str) -> str:
    """The key under which the ids of a flush are remembered: its base with a variant that the key of no transactionId
    has; `queen.base_key` computes the same in SQL."""
    return base[:19] + _BASE_VARIANTS[base[19]] + base[20:]


def looks_given(key: str) -> bool:
    """Whether the transactionId with this dedup key may be an id that a server gave: one of 4096 other UUIDs may."""
    return key[13:19] == _MARK and key[19] in _BASE_VARIANTS


def message_id(base: str, index: int) -> str:
    return base[:32] + SUFFIXES[index]


def is_uuid(text: str) -> bool:
    """True for the usual 8-4-4-4-12 form, in either case."""
    return _is_uuid(text) is not None


def dedup_keys(transaction_ids: list[str | None]) -> list[str | None]:
    """The keys of many transactionIds, None for a missing or empty one. A list of only canonical UUIDs, which is what
    clients send, is recognised as a whole."""
    count = len(transaction_ids)
    if None not in transaction_ids:
        joined = "\x1e".join(transaction_ids)  # type: ignore[arg-type]
        if len(joined) == 37 * count - 1 and joined.isascii():
            text = joined.encode() + b"\x1e"
            if text.translate(_SHAPE) == _UUID_SHAPE * count and not text[19::37].strip(b"89ab"):
                return transaction_ids
    return [dedup_key(name) if name else None for name in transaction_ids]


def dedup_key(transaction_id: str) -> str:
    """The UUID under which a transactionId is remembered; `queen.dedup_key` computes the same in SQL.

    A canonical UUID stands for itself, which keeps time-ordered ids next to each other in the index. Anything else is
    hashed, and marked by a variant nibble that no canonical UUID has, so the two kinds never meet.
    """
    if _is_canonical_uuid(transaction_id):
        return transaction_id
    digest = sha256(transaction_id.encode()).hexdigest()
    return f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-f{digest[17:20]}-{digest[20:32]}"


@lru_cache(maxsize=_TAGS)
def partition_tag(queue: str, partition: str) -> int:
    """A hash of a partition's names, so that the database notices when somebody has the number of another partition for
    them; `queen.partition_tag` computes the same in SQL."""
    digest = sha256(f"{queue}\x1e{partition}".encode()).digest()
    return int.from_bytes(digest[:4], "big", signed=True)


@lru_cache(maxsize=_TAGS)
def group_tag(queue: str, group: str) -> int:
    """The same for a consumer group of a queue; `queen.group_tag` computes it in SQL."""
    digest = sha256(f"{queue}\x1f{group}".encode()).digest()
    return int.from_bytes(digest[:4], "big", signed=True)
