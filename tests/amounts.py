"""How much the randomised tests and the proofs do: the one place where the length of `make test` is tuned.

PROOF_SCALE=6 makes them that many times longer, PROOF_SEED=7 repeats the choices (not the timing) of a run.
"""

from __future__ import annotations

import os
import random

SCALE = float(os.environ.get("PROOF_SCALE", "1"))
SEED = int(os.environ.get("PROOF_SEED", random.randrange(10**6)))

HISTORIES = int(220 * SCALE)
"""Histories of 40 steps that the state machine of the storage compares with its model."""
ENGINE_HISTORIES = int(40 * SCALE)
"""The same through the engine of two workers."""
STRESS_SECONDS = 6 * SCALE
TRAFFIC_SECONDS = 6 * SCALE
"""Of the end-to-end proof without faults."""
KILLING_SECONDS = 9 + 11 * (SCALE - 1)
"""Of the end-to-end proof that kills workers: more than a minute in `make faultlab`."""
LOST_REPLIES_SECONDS = 5 * SCALE
"""Of the end-to-end proof whose servers lose replies of PostgreSQL."""
SPARK_PARTITIONS = min(int(20_000 * SCALE), 100_000)
SPARK_MESSAGES = min(int(200_000 * SCALE), 1_000_000)

ONE_POSTGRES = os.environ.get("TEST_POSTGRES", "") == "embedded"
"""`make check` asks only the embedded PostgreSQL; otherwise each that is installed gets every test and parameter."""
PARAMETER_SETS = int(os.environ.get("TEST_PARAMETER_SETS", "0"))
"""`make check` runs this many of the parameter sets of each test; 0: all of them."""
