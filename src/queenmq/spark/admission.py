"""How much of a backlog one micro-batch takes, and from which partitions.

Partitions share a limit evenly: each gets the same amount, those with less what they have. Where there are more
partitions than messages to give, it is another share of them each time, so that none waits for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .planning import Ranges

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]


def at_most(backlog: Ranges, messages: int, turn: int) -> Ranges:
    """The next messages of a backlog, at most so many. `turn` moves on which partitions come first."""
    available = backlog.his - backlog.los
    if int(available.sum()) <= messages:
        return backlog
    level = int(_level(available.astype(np.float64), float(messages)))
    take = np.minimum(available, level)
    left = messages - int(take.sum())
    hungry = np.flatnonzero(available > level)
    take[np.roll(hungry, -(turn % len(hungry)))[:left]] += 1
    return Ranges(backlog.pids, backlog.los, backlog.los + take)


def about(backlog: Ranges, limit: int, sizes: Floats, turn: int) -> Ranges:
    """The next messages of a backlog, of about so many bytes in all, and at least one. `sizes`: the size of a message
    in each partition."""
    available = backlog.his - backlog.los
    weights = available * sizes
    if float(weights.sum()) <= limit:
        return backlog
    level = _level(weights, float(limit))
    take = np.minimum(available, (level / sizes).astype(np.int64))
    left = limit - float((take * sizes).sum())
    hungry = np.flatnonzero(available > take)
    order = np.roll(hungry, -(turn % len(hungry)))
    one_more = np.cumsum(sizes[order]) <= left
    if not take.any():
        one_more[0] = True
    take[order[one_more]] += 1
    return Ranges(backlog.pids, backlog.los, backlog.los + take)


def _level(amounts: Floats, total: float) -> float:
    """How high the amounts may be filled so that they hold no more than the total together."""
    ascending = np.sort(amounts)
    count = len(ascending)
    below = np.concatenate([[0.0], np.cumsum(ascending)])[:-1]
    # If the level is ascending[i], the first i are full and all others are filled up to it.
    full = int(np.searchsorted(below + ascending * (count - np.arange(count)), total, side="right"))
    return float((total - below[full]) / (count - full)) if full < count else float(ascending[-1])
