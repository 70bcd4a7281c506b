"""Reports: a table for programs and a page for people.

The pipelines `lag`, `skew` and `dlq-report` compute in Spark and hand small results to the driver, which writes them: a
Parquet directory, a CSV file and one HTML file that needs nothing else.
"""

from __future__ import annotations
