"""Whose Ctrl-C is it, and is the session still there."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

import pytest
from pyspark.sql import SparkSession

from queenmq.cli.pipeline import _signals
from queenmq.spark import recovery
from queenmq.spark.pipelines.base import Arguments
from queenmq.spark.pipelines.registry import find
from queenmq.spark.recovery import SparkSessions
from queenmq.spark.runner import Job, Runner
from tests.spark.test_runner import FakeSessions, Shown


def test_ctrl_c_stays_ours_when_spark_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def sparks(number: int, frame: FrameType | None) -> None:
        raise AssertionError("Spark took it")

    monkeypatch.setattr(recovery, "session", lambda *_, **__: signal.signal(signal.SIGINT, sparks))
    quiet: list[object] = []
    monkeypatch.setattr("queenmq.spark.sessions.leave_failures", quiet.append)
    before = signal.getsignal(signal.SIGINT)
    opened = SparkSessions("x").open()
    assert signal.getsignal(signal.SIGINT) is before
    assert quiet == [opened], "the runner tells of failures by itself"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_to_stop_and_the_second_ends_the_process(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    runner = Runner(Job(find("archive"), Arguments(), "postgresql://nowhere"), FakeSessions(), Shown())
    before = signal.getsignal(number)
    with _signals(runner):
        signal.raise_signal(number)
        assert (runner.stop_requested(), ended) == (True, [])
        signal.raise_signal(number)
        assert ended == [130]
    assert signal.getsignal(number) is before


def test_a_session_that_answers_is_not_lost(spark: SparkSession) -> None:
    assert not SparkSessions("x").lost(spark)
    assert SparkSession._instantiatedSession is not None
    assert threading.current_thread() is threading.main_thread()
