"""Let time pass without waiting: move the moments that the database has stored into the past.

All lease, delay and age arithmetic is `stored moment <=> clock_timestamp()`, so shifting the stored side is the same as
letting the clock run. `pass_time` shifts everything; the others shift one thing, where a test wants only that.
A queue of None means every queue.
"""

from __future__ import annotations

from queenmq.storage.pool import Executor

_QUEUE = "(select queue_id from queen.queues where $2::text is null or name = $2)"
_PARTITIONS = (
    f"(select partition_id from queen.partitions where queue_id in {_QUEUE} and ($3::text is null or name = $3))"
)


async def pass_time(db: Executor, seconds: float, queue: str | None = None) -> None:
    """Everything happened this much longer ago: messages, leases, retry delays, subscriptions, dead letters."""
    await age_messages(db, seconds, queue)
    for statement in (
        "update queen.partition_consumers set ready_at = ready_at - make_interval(secs => $1),"
        " lease_expires_at = lease_expires_at - make_interval(secs => $1),"
        " start_from = case when isfinite(start_from) then start_from - make_interval(secs => $1) else start_from end,"
        f" last_consumed_at = last_consumed_at - make_interval(secs => $1) where queue_id in {_QUEUE}",
        "update queen.consumer_groups_metadata set created_at = created_at - make_interval(secs => $1),"
        f" subscription_timestamp = subscription_timestamp - make_interval(secs => $1) where queue_id in {_QUEUE}",
        "update queen.dead_letter_queue set failed_at = failed_at - make_interval(secs => $1),"
        f" created_at = created_at - make_interval(secs => $1) where queue_id in {_QUEUE}",
    ):
        await db.execute(statement, seconds, queue)


async def age_messages(db: Executor, seconds: float, queue: str | None = None, partition: str | None = None) -> None:
    """The messages stored so far are this much older; leases and delays stay as they are."""
    for column, table in (("created_at", "segments"), ("last_message_created_at", "partition_lookup")):
        await db.execute(
            f"update queen.{table} set {column} = {column} - make_interval(secs => $1)"
            f" where partition_id in {_PARTITIONS}",
            seconds,
            queue,
            partition,
        )


async def expire_leases(db: Executor, queue: str | None = None, group: str | None = None) -> int:
    """Every lease ran out a second ago. Returns how many there were."""
    done = await db.execute(
        "update queen.partition_consumers set lease_expires_at = clock_timestamp() - interval '1 s',"
        " ready_at = clock_timestamp() - interval '1 s'"
        f" where lease_id is not null and queue_id in {_QUEUE} and group_id in"
        " (select group_id from queen.consumer_groups_metadata where $1::text is null or name = $1)",
        group,
        queue,
    )
    return int(done.split()[-1])


async def pass_retry_delays(db: Executor, queue: str | None = None, group: str | None = None) -> None:
    """Cursors that wait and hold no lease (a retry delay, a delayed message, a window) are to be looked at now."""
    await db.execute(
        "update queen.partition_consumers set ready_at = clock_timestamp() - interval '1 s'"
        f" where lease_id is null and ready_at > clock_timestamp() and queue_id in {_QUEUE} and group_id in"
        " (select group_id from queen.consumer_groups_metadata where $1::text is null or name = $1)",
        group,
        queue,
    )


async def age_retention(db: Executor, seconds: float, queue: str | None = None) -> None:
    """Retention, archive releases and the making of partitions were this much longer ago; messages stay as they are."""
    for statement in (
        "update queen.partition_lookup set trimmed_at = trimmed_at - make_interval(secs => $1),"
        f" forget_at = forget_at - make_interval(secs => $1) where queue_id in {_QUEUE}",
        f"update queen.partitions set created_at = created_at - make_interval(secs => $1) where queue_id in {_QUEUE}",
        "update queen.archive_holds set held_from = case when isfinite(held_from) then held_from"
        f" - make_interval(secs => $1) else held_from end where queue_id in {_QUEUE}",
    ):
        await db.execute(statement, seconds, queue)


async def age_operations(db: Executor, seconds: float) -> None:
    """Everything in the operation queue happened this much longer ago."""
    await db.execute(
        "update queen.operation_queue set created_at = created_at - make_interval(secs => $1),"
        " not_before = case when isfinite(not_before) then not_before - make_interval(secs => $1) else not_before end,"
        " processing_started_at = processing_started_at - make_interval(secs => $1),"
        " processed_at = processed_at - make_interval(secs => $1)",
        seconds,
    )
