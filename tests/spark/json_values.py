"""Messages to draw: any JSON that a queue takes, in a few partitions."""

from __future__ import annotations

import json

from hypothesis import strategies as st

_letters = st.characters(blacklist_categories=["Cs"], blacklist_characters="\x00")
_leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(_letters)
)
values = st.recursive(
    _leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(_letters, max_size=5), inner, max_size=4),
    max_leaves=8,
)
payloads = st.builds(json.dumps, values, ensure_ascii=st.booleans())
messages = st.lists(st.tuples(st.sampled_from(["a", "b ü", "c/d"]), payloads), min_size=1, max_size=40)
"""Pairs of a partition and a payload."""
