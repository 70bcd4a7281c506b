"""What reading, archiving and writing through Spark cost, against PostgreSQL, the server and Spark's own sources."""

from __future__ import annotations
