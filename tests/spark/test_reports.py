"""What reports are made of, without Spark: shapes of errors, pages, plots and files."""

from __future__ import annotations

import csv
import xml.etree.ElementTree as ET
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.spark.errors import OptionError
from queenmq.spark.pipelines.dlq_report import bar_width
from queenmq.spark.pipelines.lag import thinned
from queenmq.spark.reports import words
from queenmq.spark.reports.files import directory, write_csv, write_parquet, write_text
from queenmq.spark.reports.page import Column, Page
from queenmq.spark.reports.plots import bars, lines, timeline
from queenmq.spark.reports.shapes import LONGEST, shape

START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
EVIL = '<script>alert(\'x\')</script> $x_1$ \u65e5\u672c & "q" id="#010203'


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("card 17 refused after 3.5 s", "card <n> refused after <n> s"),
        ("order 550e8400-e29b-41d4-a716-446655440000 is gone", "order <uuid> is gone"),
        ("at 0xDEADBEEF, digest 9f86d081884c7d65", "at <hex>, digest <hex>"),
        ("unknown user 'bob' in \"a b\"", "unknown user <text> in <text>"),
        ("can't find 'x'; won't retry", "can't find <text>; won't retry"),
        ("no answer from 10.0.0.7:5432 since 2026-01-31T12:00:00.123Z", "no answer from <address> since <time>"),
        ("mail to a.b+c@example.org bounced", "mail to <email> bounced"),
        ("GET https://example.org/a?b=1 gave 502", "GET <url> gave <n>"),
        ("a\n  b\tc ", "a b c"),
        ("defaced facade", "defaced facade"),
        (None, "(no error given)"),
        ("  ", "(no error given)"),
    ],
)
def test_what_varies_is_left_out_of_an_error(error: str | None, expected: str) -> None:
    assert shape(error) == expected


@given(st.text(max_size=200), st.integers(0, 10**12), st.integers(0, 10**12))
def test_errors_that_differ_in_a_number_have_one_shape(text: str, one: int, other: int) -> None:
    assert shape(f"{text} job {one} failed") == shape(f"{text} job {other} failed")


@given(st.text(max_size=5000))
def test_a_shape_is_short_and_never_empty(text: str) -> None:
    assert 0 < len(shape(text)) <= LONGEST


def test_numbers_read_well() -> None:
    assert [words.count(1234567), words.share(0.1234), words.rate(0.01234), words.rate(1234.5)] == [
        "1,234,567",
        "12.3 %",
        "0.0123",
        "1,234",
    ]
    assert [words.size(n) for n in (0, 999, 1500, 2.5e9, 9e15)] == ["0 B", "999 B", "1.5 kB", "2.5 GB", "9,000.0 TB"]
    assert [words.span(n) for n in (0, 59, 90, 7200, 86400 * 3)] == ["0 s", "59 s", "1.5 min", "2.0 h", "3.0 d"]
    assert words.moment(START.astimezone()) == "2026-01-01 00:00:00"
    assert words.short("x" * 50, 10) == "x" * 9 + "…"


def test_everything_on_a_page_is_escaped() -> None:
    page = Page(EVIL, EVIL)
    page.heading(EVIL)
    page.paragraph(EVIL)
    page.facts([(EVIL, EVIL)])
    page.figure("<svg></svg>", EVIL)
    page.table([Column(EVIL), Column("n", words.count, True)], [(EVIL, 1000), (None, None)])
    html = page.html(START)
    assert "<script" not in html
    assert html.count("&lt;script&gt;") == 10
    assert '<td class="number">1,000</td>' in html
    assert f"<td>{words.NOTHING}</td>" in html
    assert "2026-01-01 00:00:00 UTC" in html


def test_a_page_loads_nothing() -> None:
    html = Page("x").html()
    assert "default-src 'none'" in html
    for outside in ("src=", "href=", "@import", "url(", "<script"):
        assert outside not in html


@pytest.mark.parametrize("kind", ["lines", "bars", "timeline"])
def test_labels_of_plots_are_texts_and_nothing_else(kind: str) -> None:
    """No markup, no formulas, no change, whatever the font lacks; and the page's colours are used."""
    points = [(START + n * HOUR, float(n)) for n in range(4)]
    if kind == "lines":
        svg = lines(EVIL, {EVIL: points, "_hidden": points[:1]}, EVIL)
    elif kind == "bars":
        svg = bars(EVIL, [(EVIL, 3.0), ("b", 0.0)], EVIL, words.count)
    else:
        svg = timeline(EVIL, HOUR, {EVIL: points, "others": points}, EVIL)
    root = ET.fromstring(svg)
    texts = ["".join(node.itertext()) for node in root.iter() if node.tag.endswith("}text")]
    assert EVIL in texts  # the unit
    assert any(text.startswith("<script>alert('x')</script> $x_1$") for text in texts if text != EVIL)  # the label
    assert kind != "lines" or any("_hidden" in text for text in texts)
    assert root.attrib["aria-label"] == EVIL
    assert "currentColor" in svg
    assert not {node.tag.rpartition("}")[2] for node in root.iter()} & {"script", "style", "metadata", "image", "a"}


def test_plots_of_one_page_share_no_ids_and_are_the_same_each_time() -> None:
    def ids(svg: str) -> set[str]:
        return {node.attrib["id"] for node in ET.fromstring(svg).iter() if "id" in node.attrib}

    def drawn(title: str) -> str:
        return bars(title, [("a", 1.0)], "n", words.count)

    assert not ids(drawn("one")) & ids(drawn("two"))
    assert drawn("one") == drawn("one")


def test_plots_of_nothing_can_be_drawn() -> None:
    assert bars("x", [], "n", words.count).startswith("<svg")
    assert lines("x", {}, "n").startswith("<svg")
    assert lines("x", {"a": [(START, 0.0)]}, "n").startswith("<svg")


class TestFiles:
    def test_a_text_that_looks_like_a_formula_stays_a_text(self, tmp_path: Path) -> None:
        table = pa.table({"a": ["=1+1", "@x", "plain", None], "n": [-1, 2, 3, 4], "at": [START] * 4})
        write_csv(tmp_path / "t.csv", table)
        with (tmp_path / "t.csv").open(newline="") as file:
            rows = list(csv.reader(file))
        assert rows[0] == ["a", "n", "at"]
        assert [row[:2] for row in rows[1:]] == [["'=1+1", "-1"], ["'@x", "2"], ["plain", "3"], ["", "4"]]
        assert datetime.fromisoformat(rows[1][2]) == START

    def test_a_file_that_could_not_be_finished_leaves_the_old_one(self, tmp_path: Path) -> None:
        file = tmp_path / "t.parquet" / "x.parquet"
        write_parquet(file, pa.table({"a": [1]}))
        with pytest.raises(AttributeError):
            write_parquet(file, None)
        assert pq.read_table(file).to_pylist() == [{"a": 1}]
        assert [path.name for path in file.parent.iterdir()] == ["x.parquet"]
        write_text(tmp_path / "t.html", "one")
        write_text(tmp_path / "t.html", "two")
        with pytest.raises(UnicodeEncodeError):
            write_text(tmp_path / "t.html", "three \ud800")
        assert (tmp_path / "t.html").read_text() == "two"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["t.html", "t.parquet"]

    def test_a_directory_that_cannot_be_made_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(OptionError, match=r"option out .*a directory"):
            directory(tmp_path / "file" / "reports")
        assert directory(tmp_path / "a" / "b").is_dir()


@given(st.lists(st.floats(0, 1e6), max_size=50), st.integers(1, 20))
def test_thinning_keeps_the_peak(values: list[float], most: int) -> None:
    points = [(START + n * HOUR, value) for n, value in enumerate(values)]
    found = thinned(points, most)
    assert len(found) <= most
    assert set(found) <= set(points)
    assert max(values, default=None) == max((value for _, value in found), default=None)


@given(st.timedeltas(timedelta(0), timedelta(days=20000)))
def test_bars_of_a_histogram_are_neither_too_many_nor_too_wide(span: timedelta) -> None:
    width = bar_width(span)
    assert span / width <= 60
    assert width <= timedelta(seconds=1) or span / width > 2
