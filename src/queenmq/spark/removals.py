"""Partitions that were removed with messages a stream had not read: the queue was deleted, or retention emptied a
partition and it was removed later, as an idle one.

Such messages are planned like others, so that reading them says what is lost, and fails or warns as the options want.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .. import sql
from .options import ReadOptions
from .planning import Ranges, names_and_patterns, texts
from .positions import Epoch

if TYPE_CHECKING:
    from adbc_driver_postgresql import dbapi


def removed_since(cursor: dbapi.Cursor, options: ReadOptions, before: Epoch) -> Ranges:
    """What the partitions that were removed since an epoch was chosen held beyond its positions. A removal is found by
    one step of a stream only: the next epoch must contain all of it, whatever its limit is."""
    queues, patterns = names_and_patterns(options.queues)
    parameters = (
        texts(queues),
        texts(patterns),
        options.namespace,
        options.task,
        texts(options.partitions or None),
        before.number,
    )
    cursor.execute(sql.query("spark_removed_partitions"), parameters=parameters)
    pids, lasts = (column.to_numpy().astype(np.int64) for column in cursor.fetch_arrow_table().columns)
    return Ranges(pids, before.positions.at(pids), lasts).nonempty()


def together(one: Ranges, other: Ranges) -> Ranges:
    """Both, of different partitions."""
    if not len(other.pids):
        return one
    order = np.argsort(np.concatenate([one.pids, other.pids]), kind="stable")
    pids, los, his = (
        np.concatenate(both)[order] for both in ((one.pids, other.pids), (one.los, other.los), (one.his, other.his))
    )
    return Ranges(pids, los, his)
