"""Pipelines: bulk flows between queues, the lake, metrics and reports.

Each is a module with a function `run(spark, arguments, events)`, which `queen pipeline run` calls through the runner,
and functions of its own for those who program. `registry` lists them without importing them, since most need Spark.
"""

from __future__ import annotations
