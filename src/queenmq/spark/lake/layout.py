"""Where things are in a lake.

    queue=<name>/date=YYYY-MM-DD/hour=HH/part-<term>-<batch>-<n>.parquet    messages, by the UTC hour of their creation
    _queen/manifest/<20 digits>.json                                        what was committed, entry by entry
    _queen/snapshots/<20 digits>.json                                       all entries up to one, summed up
    _queen/staging/<writer>/<term>-<batch>/                                 a batch that is not committed
    _queen/checkpoints/<archive>/                                           how far an archive has read

Readers of directories leave out names that begin with an underscore or a dot, so they see messages only. Names of
queues are escaped as Spark does it, and two more kinds that would not come back: a name that stands for NULL in a path,
and one that is longer than a file name may be, which is cut and told apart by a hash. The manifest has all in full.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

HOME: Final = "_queen"
MANIFEST: Final = f"{HOME}/manifest"
SNAPSHOTS: Final = f"{HOME}/snapshots"
STAGING: Final = f"{HOME}/staging"
TEMPORARY: Final = f"{HOME}/temporary"
CHECKPOINTS: Final = f"{HOME}/checkpoints"
INTENT: Final = "intent.json"
DATA: Final = "data"

_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
# Spark's list, and "~": unescaped, it marks a name that was cut.
_ESCAPED: Final = re.compile("[\x00-\x1f\"#%'*/:=?\\\\\x7f{\\[\\]^~<>| ]")
_LONGEST: Final = 200
"""Bytes of an escaped name; systems allow 255 for `queue=` and the name together."""
_HASH_DIGITS: Final = 16


def escaped(name: str) -> str:
    """A queue's name as part of a path."""
    text = "%5F" + name[1:] if name == _NULL else _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", name)
    if len(text.encode()) <= _LONGEST:
        return text
    kept = text.encode()[: _LONGEST - _HASH_DIGITS - 1].decode(errors="ignore")
    return re.sub("%.?$", "", kept) + "~" + hashlib.sha256(name.encode()).hexdigest()[:_HASH_DIGITS]


def unescaped(text: str) -> str:
    """What a reader of directories takes for the queue's name. A cut name stays cut."""
    return re.sub("%([0-9A-Fa-f]{2})", lambda found: chr(int(found[1], 16)), text)


def directory(queue: str, date: str, hour: int) -> str:
    return f"queue={escaped(queue)}/date={date}/hour={hour:02d}"


def entry(number: int) -> str:
    return f"{MANIFEST}/{number:020d}.json"


def snapshot(number: int) -> str:
    return f"{SNAPSHOTS}/{number:020d}.json"


def numbered(path: str) -> int | None:
    """The number of an entry or a snapshot."""
    found = re.fullmatch(r"(\d{20})\.json", path.rpartition("/")[2])
    return int(found[1]) if found else None


def checkpoint(queue: str) -> str:
    """Where an archive of these queues keeps how far it has read. A name of nothing but dots would lead elsewhere."""
    name = escaped(queue)
    return f"{CHECKPOINTS}/{name if name.strip('.') else name.replace('.', '%2E')}"


def staging(writer: str, term: int | None = None, batch: int = 0) -> str:
    """Where a writer puts batches before they are committed, or one of them."""
    place = f"{STAGING}/{escaped(writer)}"
    return place if term is None else f"{place}/{term}-{batch}"


def part(queue: str, date: str, hour: int, name: str) -> str:
    return f"{directory(queue, date, hour)}/part-{name}.parquet"
