"""`make bench`: what the storage engine, the whole server and several servers cost, each on a durable PostgreSQL.

    python -m benchmarks                  all of it
    python -m benchmarks storage [--rounds N]
    python -m benchmarks http [--only NAME[,NAME]] [--seconds N] [--workers 1,2] [--long]
    python -m benchmarks coordination [--only NAME[,NAME]] [--scale N]
    python -m benchmarks spark [--only NAME[,NAME]] [--scale N]       (`make bench-spark`; not part of all)

`--record` writes the tables into benchmarks/RESULTS.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from . import storage, tables
from .coordination import table as coordination
from .http import table as http

RESULTS = Path(__file__).with_name("RESULTS.md")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks", description="What the server costs per message.")
    parser.add_argument("part", nargs="?", choices=["all", *PARTS], default="all", help="default: all")
    parser.add_argument("--record", action="store_true", help="write the tables into benchmarks/RESULTS.md")
    parser.add_argument("--rounds", type=int, default=60, help="storage: measured rounds per case (default 60)")
    parser.add_argument("--only", type=_names, default=[], help="http, coordination, spark: names of rows, with commas")
    parser.add_argument("--seconds", type=float, default=4.0, help="http: measured seconds per row (default 4)")
    parser.add_argument("--workers", type=_numbers, default=[1, 2], help="http: numbers of workers (default 1,2)")
    parser.add_argument("--long", action="store_true", help="http: the 10-minute run too")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="coordination, spark: this part of each row's work (default 1)"
    )
    options = parser.parse_args(arguments)
    if options.only and options.part not in ("http", "coordination", "spark"):
        parser.error("--only goes with http, coordination or spark")
    return options


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def main() -> int:
    options = parse(sys.argv[1:])
    console = Console()
    command = " ".join(["python -m benchmarks", *sys.argv[1:]])
    chosen = [options.part] if options.part != "all" else [name for name in PARTS if name != "spark"]
    failed = [PARTS[name](options, console, command) for name in chosen]
    return 1 if any(failed) else 0


def _storage(options: argparse.Namespace, console: Console, command: str) -> bool:
    lines, version = storage.measure(options.rounds, console)
    storage.show(console, lines)
    if options.record:
        storage.record(RESULTS, lines, version, options.rounds)
    return False


def _http(options: argparse.Namespace, console: Console, command: str) -> bool:
    chosen = http.Options(
        only=options.only, seconds=options.seconds, workers=options.workers, long=options.long or "long" in options.only
    )
    report = http.measure(chosen, console)
    http.show(console, report)
    if options.record:
        http.record(RESULTS, report, command)
    return bool(report.failures)


def _coordination(options: argparse.Namespace, console: Console, command: str) -> bool:
    report = coordination.measure(tables.Options(only=options.only, scale=options.scale), console)
    coordination.show(console, report)
    if options.record:
        coordination.record(RESULTS, report, command)
    return bool(report.failures)


def _spark(options: argparse.Namespace, console: Console, command: str) -> bool:
    from .spark import table as spark  # it takes PySpark a second to be imported

    report = spark.measure(tables.Options(only=options.only, scale=options.scale), console)
    spark.show(console, report)
    if options.record:
        spark.record(RESULTS, report, command)
    return bool(report.failures)


PARTS = {"storage": _storage, "http": _http, "coordination": _coordination, "spark": _spark}
"""Each measures, shows and records, and says whether something went wrong."""


if __name__ == "__main__":
    sys.exit(main())
