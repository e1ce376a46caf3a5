"""Prepare quick starts of Spark: `python -m unisono.pipeline.spark.warmup`, once per installation.

Takes about half a minute and 160 MB of disk. Safe to run again, and to run in two places at once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from unisono.pipeline.errors import PipelineError
from unisono.pipeline.spark import jvm

EXIT_TIMEOUT_S: Final = 120.0
"""Writing the archive happens while Java ends."""


def prepare(*, anew: bool = False) -> Path:
    """The directory with everything prepared; makes what is missing."""
    from pyspark.find_spark_home import _find_spark_home

    home, java = Path(_find_spark_home()), jvm.java_home()
    prepared = jvm.PreparedStart(home, java)
    if anew:
        shutil.rmtree(prepared.directory, ignore_errors=True)
    prepared.settings.mkdir(parents=True, exist_ok=True)
    if prepared.launch({}) is None:
        prepared.keep(_ask_launcher(home, java, prepared))
    if not prepared.archive.is_file():
        with tempfile.TemporaryDirectory(dir=prepared.directory) as folder:
            made = Path(folder) / prepared.archive.name
            _record(made)
            made.replace(prepared.archive)
    return prepared.directory


def _ask_launcher(spark_home: Path, java: Path, prepared: jvm.PreparedStart) -> jvm.Launch:
    """What Spark's scripts would start: their launcher prints it, separated by NULs."""
    jars = spark_home / "jars"
    core = next(jars.glob("spark-core_*.jar")).name
    environment = {
        **os.environ,
        "SPARK_HOME": str(spark_home),
        "SPARK_CONF_DIR": str(prepared.settings),
        "SPARK_SCALA_VERSION": core.removeprefix("spark-core_").partition("-")[0],
        "JAVA_HOME": str(java),
    }
    command = [str(java / "bin" / "java"), "-Xmx128m", "-cp", f"{jars}/*"]
    command += ["org.apache.spark.launcher.Main", "org.apache.spark.deploy.SparkSubmit", "pyspark-shell"]
    asked = subprocess.run(  # noqa: S603 (Spark's launcher, on the Java that was found)
        command, env=environment, capture_output=True, text=True, check=False
    )
    words = [word for word in asked.stdout.replace("\n", "\0").split("\0") if word]
    if asked.returncode != 0 or "-cp" not in words:
        raise PipelineError(f"Spark's launcher does not tell its command: {asked.stderr.strip()[:500]}")
    main = words.index("org.apache.spark.deploy.SparkSubmit")
    classpath = words.index("-cp") + 1
    options = [word for word in words[classpath + 1 : main] if not word.startswith("-Xmx")]
    # Only MLlib's linear algebra uses it, and Java announces it each time.
    options = [word for word in options if word != "--add-modules=jdk.incubator.vector"]
    return jvm.Launch(words[0], words[classpath], options)


def _record(archive: Path) -> None:
    """Let Spark do a little of everything, and have Java write down the classes it took."""
    from unisono.pipeline.spark.session import session

    conf = {"spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={archive} -Xlog:disable"}
    with tempfile.TemporaryDirectory(prefix="unisono-") as folder:
        spark = session("local[2]", "unisono warm-up", conf=conf)
        process = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
        _exercise(spark, Path(folder))
        spark.stop()
        process.stdin.close()
        try:
            process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
    if not archive.is_file():
        raise PipelineError("Java wrote no archive of classes; Spark will start without")


def _exercise(spark: Any, folder: Path) -> None:
    from pyspark.sql import functions as f

    spark.sparkContext.parallelize(range(4), 2).map(str).collect()
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
        directory = prepare(anew="--anew" in sys.argv[1:])
    except PipelineError as error:
        sys.exit(f"unisono: {error}")
    sys.stderr.write(f"Spark starts quickly from {directory} ({time.monotonic() - began:.0f} s)\n")


if __name__ == "__main__":
    main()
