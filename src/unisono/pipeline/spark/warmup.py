"""Prepares fast starts of Spark: `python -m unisono.pipeline.spark.warmup`, once per installation.

Takes about half a minute and 160 MB of disk. Safe to run again, and to run twice at the same time. Java 19 could
write such an archive by itself (-XX:+AutoCreateSharedArchive); Spark 4 also runs on Java 17, which cannot.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from unisono.pipeline.errors import PipelineError
from unisono.pipeline.spark import jvm, private
from unisono.pipeline.spark.executors import PLAN_BYTES_MAX, run_on_executors

EXIT_TIMEOUT_S: Final = 120.0
"""Java writes the archive while it ends."""


def prepare(*, again: bool = False) -> Path:
    """Prepare what is missing; the directory with all of it."""
    home, java = private.spark_home(), jvm.java_home()
    prepared = jvm.PreparedStart(home, java)
    if again:
        shutil.rmtree(prepared.directory, ignore_errors=True)
    prepared.settings.mkdir(parents=True, exist_ok=True)
    if prepared.launch({}) is None:
        prepared.keep(_launch(home, java, prepared))
    if not prepared.archive.is_file():
        with tempfile.TemporaryDirectory(dir=prepared.directory) as folder:
            archive = Path(folder) / prepared.archive.name
            _record(archive)
            archive.replace(prepared.archive)
    return prepared.directory


def _launch(spark_home: Path, java: Path, prepared: jvm.PreparedStart) -> jvm.Launch:
    """The command of Spark's scripts, without memory size and options that do not concern Unisono."""
    words = private.launcher_words(spark_home, java, prepared.settings)
    main = words.index("org.apache.spark.deploy.SparkSubmit")
    classpath = words.index("-cp") + 1
    options = [word for word in words[classpath + 1 : main] if not word.startswith("-Xmx")]
    # Only MLlib's linear algebra uses it, and Java prints a line about it at each start.
    options = [word for word in options if word != "--add-modules=jdk.incubator.vector"]
    return jvm.Launch(words[0], words[classpath], options)


def _record(archive: Path) -> None:
    """Run a little of everything, and let Java archive the classes it loads."""
    from unisono.pipeline.spark.session import session

    conf = {"spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={archive} -Xlog:disable"}
    with tempfile.TemporaryDirectory(prefix="unisono-") as folder:
        spark = session("local[2]", "unisono warm-up", conf=conf)
        process = private.java_process(spark)
        _exercise(spark, Path(folder))
        spark.stop()
        process.stdin.close()
        try:
            process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
    if not archive.is_file():
        raise PipelineError("Java wrote no class archive; Spark starts without one")


def _exercise(spark: Any, folder: Path) -> None:
    from pyspark.sql import functions as f

    from unisono.pipeline.spark.session import FEW_ROWS_SETTINGS

    compiling = {name: spark.conf.get(name) for name in FEW_ROWS_SETTINGS}
    for settings in (FEW_ROWS_SETTINGS, compiling):
        for name, value in settings.items():
            spark.conf.set(name, value)
        run_on_executors(spark, range(4), str)
        run_on_executors(spark, [bytes(PLAN_BYTES_MAX)] * 2, len)
    numbers = spark.range(1000).withColumn("name", f.sha2(f.col("id").cast("string"), 256))
    numbers.write.parquet(str(folder / "numbers"))
    read = spark.read.parquet(str(folder / "numbers")).where("id > 10")
    grouped = read.repartition(2, "name").sortWithinPartitions("name").mapInArrow(_same, read.schema)
    grouped.groupBy(f.substring("name", 1, 1)).count().orderBy("count").collect()
    stream = spark.readStream.schema(read.schema).parquet(str(folder / "numbers")).writeStream
    sink = stream.foreachBatch(lambda rows, _: rows.count()).option("checkpointLocation", str(folder / "at"))
    sink.trigger(availableNow=True).start().awaitTermination()


def _same(rows: Iterator[Any]) -> Iterator[Any]:
    yield from rows


def main() -> None:
    began = time.monotonic()
    try:
        directory = prepare(again="--again" in sys.argv[1:])
    except PipelineError as error:
        sys.exit(f"unisono: {error}")
    sys.stderr.write(f"Spark starts quickly from {directory} ({time.monotonic() - began:.0f} s)\n")


if __name__ == "__main__":
    main()
