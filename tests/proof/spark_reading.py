"""Reads one task of a plan and says how much memory that took: `python spark_reading.py URL SPLITS TASK`."""

from __future__ import annotations

import json
import resource
import sys

from tests.spark.reading import reader

_UNIT = 1 if sys.platform == "darwin" else 1024


def main(url: str, splits: int, task: int) -> None:
    source = reader(url, ["partition", "seq", "transaction_id", "payload"], numSplits=splits)
    parts = source.partitions()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rows = size = largest = 0
    for batch in source.read(parts[task]):
        rows += batch.num_rows
        size += batch.nbytes
        largest = max(largest, batch.nbytes)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * _UNIT
    print(json.dumps({"tasks": len(parts), "rows": rows, "bytes": size, "largest": largest, "grown": grown}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
