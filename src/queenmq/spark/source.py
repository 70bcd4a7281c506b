"""The data source `queen`: what Spark asks for when a query says `format("queen")`.

An instance is made for each query, on the driver, and checks the options before anything else happens. What travels to
the executors are the options and the plan of a task; neither holds a secret.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from .errors import OptionError
from .options import read_options, write_options
from .schema import schema_for

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter
    from pyspark.sql.types import StructType


class QueenDataSource(DataSource):
    """Queues as tables and streams."""

    @classmethod
    def name(cls) -> str:
        return "queen"

    def schema(self) -> str:
        return schema_for(read_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options)
        if options.dataset == "ranges":
            raise OptionError("dataset", "ranges", "another one: ranges can only be read as a stream")
        if options.dataset != "messages":
            from .datasets import DatasetReader

            return DatasetReader(options, schema)
        from .reader import message_reader

        return message_reader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from .stream_reader import MessageStreamReader

        options = read_options(self.options)
        if options.pushdown:
            raise OptionError("pushdown", "true", "left out: only batches of messages take it")
        return MessageStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from .writer import MessageWriter

        return MessageWriter(write_options(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from .writer import MessageStreamWriter

        return MessageStreamWriter(write_options(self.options), schema, overwrite)
