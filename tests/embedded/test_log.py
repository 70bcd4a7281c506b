"""The server's log stays small, and reading it goes on across the cut."""

from __future__ import annotations

from pathlib import Path

from queenmq.embedded.logfile import LogReader, open_for_server, rotate_if_large


def test_a_large_log_is_cut_under_the_writing_server(tmp_path: Path) -> None:
    path = tmp_path / "postgres.log"
    with open_for_server(path) as server:
        server.write(b"old\n" * 10)
        rotate_if_large(path, limit=100)
        assert not path.with_name("postgres.log.1").exists()
        rotate_if_large(path, limit=20)
        server.write(b"new\n")
    assert path.read_text() == "new\n"
    assert path.with_name("postgres.log.1").read_text() == "old\n" * 10


def test_the_reader_gives_whole_new_lines(tmp_path: Path) -> None:
    path = tmp_path / "postgres.log"
    path.write_text("before\n")
    reader = LogReader(path)
    with open_for_server(path) as server:
        server.write(b"one\nha")
        assert reader.read_more() == "one\n"
        server.write(b"lf\n")
        assert reader.read_more() == "half\n"
        assert reader.read_more() == ""
    path.write_text("cut\n")
    assert reader.read_more() == "cut\n"
    assert reader.text == "one\nhalf\ncut\n"
