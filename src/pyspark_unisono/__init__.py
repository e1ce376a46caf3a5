"""Makes `format("unisono")` known to every Spark session of this Python, without a call.

Spark looks for packages whose names begin with `pyspark_` and registers the data source that each calls
`DefaultSource`. `unisono.pipeline.register(spark)` does the same for a Python that has the package only on its path.
"""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("deltalake") is not None:
    from unisono.pipeline.spark.source import UnisonoSource

    class DefaultSource(UnisonoSource):
        """What `spark.read.format("unisono")` reads."""
