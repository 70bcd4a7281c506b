"""`make bench`: what the storage engine and the whole server cost, each on a durable PostgreSQL of its own.

    python -m benchmarks                  both
    python -m benchmarks storage [--rounds N]
    python -m benchmarks http [--only NAME[,NAME]] [--seconds N] [--workers 1,2] [--long]

`--record` writes the tables into benchmarks/RESULTS.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from . import storage
from .http import table as http

RESULTS = Path(__file__).with_name("RESULTS.md")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks", description="What the server costs per message.")
    parser.add_argument("part", nargs="?", choices=["all", "storage", "http"], default="all", help="default: all")
    parser.add_argument("--record", action="store_true", help="write the tables into benchmarks/RESULTS.md")
    parser.add_argument("--rounds", type=int, default=60, help="storage: measured rounds per case (default 60)")
    parser.add_argument("--only", type=_names, default=[], help="http: names of rows, with commas")
    parser.add_argument("--seconds", type=float, default=4.0, help="http: measured seconds per row (default 4)")
    parser.add_argument("--workers", type=_numbers, default=[1, 2], help="http: numbers of workers (default 1,2)")
    parser.add_argument("--long", action="store_true", help="http: the 10-minute run too")
    return parser.parse_args(arguments)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def main() -> int:
    options = parse(sys.argv[1:])
    console = Console()
    if options.part != "http":
        lines, version = storage.measure(options.rounds, console)
        storage.show(console, lines)
        if options.record:
            storage.record(RESULTS, lines, version, options.rounds)
    if options.part == "storage":
        return 0
    chosen = http.Options(
        only=options.only, seconds=options.seconds, workers=options.workers, long=options.long or "long" in options.only
    )
    report = http.measure(chosen, console)
    http.show(console, report)
    if options.record:
        http.record(RESULTS, report, " ".join(["python -m benchmarks", *sys.argv[1:]]))
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
