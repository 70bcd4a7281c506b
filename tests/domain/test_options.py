"""The table of options in the documentation is the table in the code."""

from __future__ import annotations

from pathlib import Path

from queenmq.domain.options import markdown


def test_the_documentation_lists_every_option_as_it_is() -> None:
    assert markdown() in (Path(__file__).parents[2] / "docs" / "queues.md").read_text()
