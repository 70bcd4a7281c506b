"""A program for an official `queen-mq` client: `python official_client.py URL`, in an environment that has one.

It uses the client as its users do and raises when something is not as they expect. Each step works on a queue of its
own, and prints its name when it is done.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Awaitable, Callable
from typing import Any

Queen = importlib.import_module("queen").Queen


async def configure(client: Any) -> None:
    options = {"lease_time": 45, "retry_limit": 7, "priority": 3}
    result = await client.queue("configured").namespace("shop").task("bills").config(options).create()
    assert result["configured"] is True, result
    assert (result["namespace"], result["task"]) == ("shop", "bills"), result
    assert {"leaseTime": 45, "retryLimit": 7, "priority": 3}.items() <= result["options"].items(), result


async def push_and_pop(client: Any) -> None:
    """One message, a batch to a partition, and one that was pushed before."""
    (one,) = await client.queue("plain").push({"data": {"n": 0}, "transactionId": "only-once"})
    assert one["status"] == "queued", one
    (again,) = await client.queue("plain").push({"data": {"n": 0}, "transactionId": "only-once"})
    assert again["status"] == "duplicate", again
    many = await client.queue("plain").partition("ann").push([{"data": {"n": n}} for n in range(1, 6)])
    assert [result["status"] for result in many] == ["queued"] * 5, many

    messages = await client.queue("plain").partition("ann").batch(10).wait(False).pop()
    assert [message["data"]["n"] for message in messages] == [1, 2, 3, 4, 5], messages
    done = await client.ack(messages)
    assert done["success"] is True, done
    (message,) = await client.queue("plain").batch(1).pop()
    assert message["data"] == {"n": 0}, message
    assert message["transactionId"] == "only-once", message
    assert (await client.ack(message))["success"] is True
    assert await client.queue("plain").batch(10).wait(False).pop() == []


async def payloads(client: Any) -> None:
    """Any JSON comes back as it was sent."""
    sent: list[Any] = [None, True, 1.5, "zwölf €", [], {}, {"deep": [{"er": None}]}, 12345678901234567890]
    await client.queue("payloads").push([{"data": one} for one in sent])
    messages = await client.queue("payloads").batch(20).wait(False).pop()
    assert [message["data"] for message in messages] == sent, messages


async def nack_and_dead_letter(client: Any) -> None:
    """A message that failed comes again, and is a dead letter when it failed once too often."""
    await client.queue("failing").config({"retry_limit": 1, "retry_delay": 0}).create()
    await client.queue("failing").push([{"data": {"n": 1}}, {"data": {"n": 2}}])
    for dead in (False, True):
        (message,) = await client.queue("failing").batch(1).pop()
        assert message["data"] == {"n": 1}, message
        failed = await client.ack(message, False, {"error": "no stock"})
        assert (failed["success"], failed["dlq"]) == (True, dead), failed
    (message,) = await client.queue("failing").batch(1).pop()
    assert message["data"] == {"n": 2}, message
    assert (await client.ack(message))["success"] is True


async def renew(client: Any) -> None:
    await client.queue("slow").push({"data": {}})
    messages = await client.queue("slow").batch(1).pop()
    one = await client.renew(messages[0])
    assert one["success"] is True, one
    assert one["newExpiresAt"], one
    (same,) = await client.renew(messages)
    assert same["success"] is True, same
    assert (await client.ack(messages))["success"] is True


async def transaction(client: Any) -> None:
    """An ack and two pushes together; and none of them when the ack cannot be."""
    await client.queue("input").push({"data": {"n": 1}})
    (message,) = await client.queue("input").batch(1).pop()
    outputs = client.transaction().ack(message).queue("output").push([{"data": {"n": 2}}, {"data": {"n": 3}}])
    committed = await outputs.commit()
    assert committed["success"] is True, committed
    assert len(committed["results"]) == 3, committed
    assert await client.queue("input").batch(1).wait(False).pop() == []
    messages = await client.queue("output").batch(5).wait(False).pop()
    assert [made["data"]["n"] for made in messages] == [2, 3], messages
    assert (await client.ack(messages))["success"] is True

    stranger = {**message, "transactionId": "never-pushed"}
    try:
        await client.transaction().ack(stranger).queue("output").push({"data": {"n": 4}}).commit()
    except Exception as error:
        refusal = str(error).lower()
    else:
        refusal = ""
    assert "ack" in refusal or "lease" in refusal, refusal
    assert await client.queue("output").batch(5).wait(False).pop() == []


async def consume(client: Any) -> None:
    """A handler gets everything, in order per partition, and again what it failed at; another group gets it too."""
    for partition in ("ann", "bob"):
        await client.queue("work").partition(partition).push([{"data": {"p": partition, "n": n}} for n in range(10)])
    await _consume_all(client, "first")
    await _consume_all(client, "second")


async def _consume_all(client: Any, group: str) -> None:
    seen: dict[str, list[int]] = {"ann": [], "bob": []}
    done = asyncio.Event()
    failures = [3]

    async def handle(message: dict[str, Any]) -> None:
        data = message["data"]
        if data["n"] in failures:
            failures.clear()
            raise RuntimeError("not this time")
        seen[data["p"]].append(data["n"])
        if sum(map(len, seen.values())) == 20:
            done.set()

    consumer = client.queue("work").group(group).batch(4).each().subscription_mode("all")
    await asyncio.wait_for(_all_of(consumer.consume(handle, signal=done)), 30)
    assert seen == {"ann": list(range(10)), "bob": list(range(10))}, seen


async def consume_batches(client: Any) -> None:
    """While the queue is still empty: the consumer waits, and a push wakes it."""
    got: list[int] = []
    done = asyncio.Event()

    async def handle(messages: list[dict[str, Any]]) -> None:
        got.extend(message["data"]["n"] for message in messages)
        if len(got) == 6:
            done.set()

    await client.queue("batches").create()
    consumer = client.queue("batches").group("waiting").batch(3).renew_lease(True, 1000)
    consuming = asyncio.ensure_future(_all_of(consumer.consume(handle, signal=done)))
    await client.queue("batches").push([{"data": {"n": n}} for n in range(6)])
    await asyncio.wait_for(consuming, 30)
    assert got == list(range(6)), got


async def _all_of(work: Awaitable[Any]) -> None:
    await work


async def namespaces(client: Any) -> None:
    """A pop can name a namespace and a task instead of a queue."""
    for queue, task in (("mail-a", "send"), ("mail-b", "receive")):
        await client.queue(queue).namespace("mail").task(task).create()
        await client.queue(queue).push({"data": {"queue": queue}})
    (sent,) = await client.queue().namespace("mail").task("send").batch(5).wait(False).pop()
    assert sent["data"] == {"queue": "mail-a"}, sent
    assert (await client.ack(sent))["success"] is True
    (received,) = await client.queue().namespace("mail").batch(5).wait(False).pop()
    assert received["data"] == {"queue": "mail-b"}, received
    assert (await client.ack(received))["success"] is True


async def unset_sizes(client: Any) -> None:
    """Whatever a client sends when its user says nothing about sizes: the message comes."""
    await client.queue("sizes").push({"data": {"n": 1}})
    (message,) = await client.queue("sizes").pop()
    assert message["data"] == {"n": 1}, message
    assert (await client.ack(message, True))["success"] is True


STEPS: list[Callable[[Any], Awaitable[None]]] = [
    configure,
    push_and_pop,
    payloads,
    nack_and_dead_letter,
    renew,
    transaction,
    consume,
    consume_batches,
    namespaces,
    unset_sizes,
]


async def main(url: str) -> None:
    async with Queen(url) as client:
        for step in STEPS:
            await asyncio.wait_for(step(client), 60)
            print(f"done: {step.__name__}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
