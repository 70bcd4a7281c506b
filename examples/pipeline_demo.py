"""Push, archive, report and replay: what the pipelines do, in a few minutes, on a machine that has nothing running.

    make pipeline-demo

Starts a server of its own, with its own PostgreSQL, in a temporary directory, and pushes orders over HTTP. Then it does
with one Spark session what the commands it shows would do, each with a session of its own. Reports and lake stay where
it says at the end; the server and its data are removed.
"""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

import queenmq.spark
from queenmq.spark.pipelines import archive, backfill_check, dlq_report, lag, replay, skew, window
from queenmq.spark.pipelines.base import Arguments, Outcome, Quiet, Run
from queenmq.storage.url import without_password

QUEEN = Path(sys.executable).parent / "queen"
WINDOWS = Path(__file__).parent / "window_orders.yaml"
ORDERS = 6000
BATCH = 500
READY_SECONDS = 60
ERRORS = ("card {} was declined", "no stock of article {}", "timeout after {} ms")
console = Console(highlight=False)


@dataclass(frozen=True)
class Server:
    url: str

    def post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def pop(self, path: str) -> list[Any]:
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return list(json.load(answer)["messages"]) if answer.status == 200 else []


@contextmanager
def server(folder: Path) -> Iterator[Server]:
    """A server with its own embedded PostgreSQL."""
    folder.chmod(0o755)  # under root, PostgreSQL runs as another user
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "QUEEN_DATA_DIR": str(folder / "data")}
    said = folder / "server.txt"
    with said.open("w") as out, (folder / "server.log").open("w") as log:
        process = subprocess.Popen([QUEEN, "serve", "--port", "0"], env=environment, stdout=out, stderr=log)
    try:
        found = None
        until = time.monotonic() + READY_SECONDS
        while found is None:
            if process.poll() is not None or time.monotonic() > until:
                sys.exit(f"the server did not start: {(folder / 'server.log').read_text()}")
            time.sleep(0.1)
            found = re.search(r"URL +(http://\S+)", said.read_text())
        url = subprocess.run([QUEEN, "db", "url"], env=environment, capture_output=True, text=True, check=True).stdout
        os.environ |= {"DATABASE_URL": url.strip(), "QUEEN_URL": found[1]}
        yield Server(found[1])
    finally:
        process.terminate()
        process.wait()


def push_orders(to: Server) -> None:
    """A few customers order much more than others, over the last half hour."""
    choice = random.Random(7)
    now = time.time()
    for start in range(0, ORDERS, BATCH):
        items = []
        for number in range(start, start + BATCH):
            customer = f"customer-{min(choice.randrange(1, 40) for _ in range(3))}"
            at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now - 1800 * (1 - number / ORDERS)))
            order = {"customer": customer, "total": round(choice.uniform(1, 200), 2), "at": at}
            items.append({"queue": "orders", "partition": customer, "payload": order})
        to.post("/api/v1/push", {"items": items})


def consume_some(of: Server) -> int:
    """A consumer group that is behind, and gives up on some messages."""
    choice = random.Random(11)
    dead = 0
    for _ in range(6):
        messages = of.pop("/api/v1/pop/queue/orders?consumerGroup=billing&batch=100&partitions=3")
        for message in messages:
            kept = {name: message[name] for name in ("transactionId", "partitionId", "leaseId")}
            broken = choice.random() < 0.05
            error = choice.choice(ERRORS).format(choice.randrange(1000, 9999))
            message |= {"ack": kept | ({"status": "dlq", "error": error} if broken else {"status": "completed"})}
            dead += broken
        acks = [message["ack"] for message in messages]
        of.post("/api/v1/ack/batch", {"acknowledgments": acks, "consumerGroup": "billing"})
    return dead


def step(what: str, command: str) -> None:
    console.print(f"\n[bold]{what}[/]\n  [dim]$ queen pipeline run {command}[/]", soft_wrap=True)


def show(outcome: Outcome, started: float) -> None:
    for line in outcome.summary:
        console.print(f"  {line}", soft_wrap=True, markup=False)
    console.print(f"  [dim]{time.monotonic() - started:.1f} s[/]")


def counts(spark: Any) -> None:
    shown = Table("Queue", "Messages", "Partitions", box=None, pad_edge=False, header_style="bold")
    messages = spark.read.format("queen").option("queue", "*").option("columns", "queue,partition").load()
    found = messages.groupBy("queue").agg(F.count("*"), F.countDistinct("partition"))
    for queue, count, partitions in found.orderBy("queue").collect():
        shown.add_row(queue, f"{count:,}", str(partitions))
    console.print(shown)


def pipelines(spark: Any, folder: Path) -> None:
    lake, reports, checkpoint = str(folder / "lake"), str(folder / "reports"), str(folder / "windows")
    given = Arguments(database_url=without_password(os.environ["DATABASE_URL"])[0], url=os.environ["QUEEN_URL"])

    def run(work: Run, what: str, command: str, **changes: Any) -> None:
        step(what, command)
        started = time.monotonic()
        show(work(spark, replace(given, **changes), Quiet()), started)

    to_lake = {"queue": "orders", "lake": lake}
    q = shlex.quote
    run(archive.run, "Archive the queue", f"archive --queue orders --lake {q(lake)} --once", once=True, **to_lake)
    run(backfill_check.run, "Compare lake and queue", f"backfill-check --queue orders --lake {q(lake)}", **to_lake)
    for name, work in (("skew", skew.run), ("lag", lag.run), ("dlq-report", dlq_report.run)):
        run(work, f"Report: {name}", f"{name} --out {q(reports)}", out=reports)
    config = str(WINDOWS)
    command = f"window --config {q(config)} --checkpoint {q(checkpoint)} --once"
    run(window.run, "Revenue per customer and minute", command, config=config, checkpoint=checkpoint, once=True)
    for again in ("", ", once more: nothing is added"):
        command = f"replay --queue orders --lake {q(lake)} --to orders-again"
        run(replay.run, f"Replay into another queue{again}", command, to="orders-again", **to_lake)


def main() -> None:
    started = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="queen-demo-"))
    with tempfile.TemporaryDirectory(prefix="queen-demo-server-", ignore_cleanup_errors=True) as data:
        console.print("[bold]Start a server with its own PostgreSQL[/]")
        with server(Path(data)) as running:
            console.print(f"  {running.url}")
            push_orders(running)
            dead = consume_some(running)
            console.print(f"  pushed {ORDERS:,} orders; a consumer gave up on {dead} of those it took")
            console.print("\n[bold]Start Spark[/]")
            spark = queenmq.spark.session("queen pipeline demo")
            pipelines(spark, folder)
            console.print("\n[bold]What is in the queues now[/]")
            counts(spark)
            spark.stop()
    console.print(f"\nThe lake and the reports are in {folder}:", soft_wrap=True)
    for page in sorted(folder.glob("reports/*.html")):
        console.print(f"  {page}", soft_wrap=True)
    console.print(f"[dim]{time.monotonic() - started:.0f} s in all[/]")


if __name__ == "__main__":
    main()
