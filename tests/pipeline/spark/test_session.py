from __future__ import annotations

import os
import py_compile
import shutil
import subprocess
import sys
import zipfile
from importlib.util import cache_from_source
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.conftest import FEW_ROWS
from unisono.pipeline.errors import NoJava, PipelineError
from unisono.pipeline.spark import jvm, packing, session
from unisono.pipeline.spark.jvm import Launch, PreparedStart, cache_directory, java_home, java_version
from unisono.pipeline.spark.packing import pack


def test_masters() -> None:
    assert session._with_retries("local[*]") == "local[*,4]"
    assert session._with_retries("local") == "local[1,4]"
    assert session._with_retries("local[2,7]") == "local[2,7]"
    assert session._with_retries("spark://h:7077") == "spark://h:7077"


def test_a_running_session_elsewhere_is_no_answer(spark: SparkSession) -> None:
    """A job does not run in silence on another cluster than the one it was told."""
    assert session.session() is session.session("local[7]") is spark
    for master in ("sc://127.0.0.1:1", "spark://127.0.0.1:1"):
        for named in ({"master": master}, {"conf": {"spark.master": master}}):
            with pytest.raises(PipelineError, match=rf"a Spark session on local\[2,4\], not on {master}"):
                session.session(**named)


def test_settings_for_a_running_session_are_taken_or_refused(spark: SparkSession) -> None:
    shuffles = spark.conf.get("spark.sql.shuffle.partitions")
    try:
        session.session(conf={"spark.sql.shuffle.partitions": "3", "spark.driver.host": "127.0.0.1"})
        assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", str(shuffles))
    with pytest.raises(PipelineError, match=r"cannot take spark\.driver\.memory=9g: set it where this"):
        session.session(conf={"spark.driver.memory": "9g"})
    java_options = "spark.executor.extraJavaOptions"
    assert spark.conf.get(java_options) != FEW_ROWS[java_options], "Spark has added its own"
    assert session.session(conf={java_options: FEW_ROWS[java_options]}) is spark, "as it was started"
    with pytest.raises(PipelineError, match=r"cannot take spark\.executor\.extraJavaOptions=-Dtests=no"):
        session.session(conf={java_options: "-Dtests=no"})
    with pytest.raises(
        PipelineError, match=r"cannot take spark\.hadoop\.fs\.defaultFS=s3a://b: set it where"
    ):
        session.session(conf={"spark.hadoop.fs.defaultFS": "s3a://b"})
    assert spark.conf.get("spark.hadoop.fs.defaultFS", None) is None
    checksums = "spark.hadoop.parquet.page.verify-checksum.enabled"
    assert session.session(conf={checksums: session.SETTINGS[checksums]}) is spark, "as it was started"


def test_settings_of_the_caller_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_DRIVER_MEMORY", "2g")
    assert session._settings("local[*]", {}, progress=False)["spark.driver.memory"] == "2g"
    settings = session._settings("local[*]", {"spark.driver.memory": "3g"}, progress=True)
    assert settings["spark.driver.memory"] == "3g"
    assert settings["spark.ui.showConsoleProgress"] == "true"
    assert 2 <= int(settings["spark.sql.shuffle.partitions"]) <= 8
    assert settings["spark.driver.host"] == "127.0.0.1"
    assert "spark.driver.host" not in session._settings("spark://h:7077", {}, progress=False)
    mode = "spark.sql.codegen.factoryMode"
    assert session._settings("local", {}, progress=False, few_rows=True)[mode] == "NO_CODEGEN"
    assert session._settings("local", {mode: "FALLBACK"}, progress=False, few_rows=True)[mode] == "FALLBACK"


def test_a_java_that_is_not_there_or_too_old(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(NoJava, match=r"there is no bin/java in it: install one .*apt install openjdk-17"):
        java_home()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoJava, match="there is none: install one"):
        java_home()
    for text, words in (
        ('JAVA_VERSION="11.0.2"', "is Java 11.0.2 and Spark needs 17"),
        ("?", "unknown Java version"),
    ):
        (tmp_path / "release").write_text(text)
        with pytest.raises(NoJava, match=words):
            java_version(tmp_path)
    (tmp_path / "release").unlink()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("#!/bin/sh\n")
    with pytest.raises(NoJava, match=r"cannot be run .*Permission denied.*install one"):
        java_version(tmp_path)
    (tmp_path / "release").write_text('IMPLEMENTOR="x"\nJAVA_VERSION="21.0.1"\n')
    assert java_version(tmp_path) == "21.0.1"


def test_no_master_there() -> None:
    with pytest.raises(PipelineError, match="no Spark master answers at"):
        session._require_master("spark://127.0.0.1:1")


def test_a_prepared_start_gives_way_to_other_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("UNISONO_CACHE_DIR", str(tmp_path))
    assert cache_directory() == tmp_path
    prepared = PreparedStart(Path("/spark"), java_home())
    assert prepared.launch({}) is None
    [logging] = prepared.java_options()
    assert logging.startswith("-Dlog4j2.configurationFile=file:")
    launch = Launch("java", "a:b", ["-Dx=y"])
    prepared.keep(launch)
    assert prepared.launch({}) == launch
    assert prepared.launch({"spark.jarsomething": "x", "spark.driver.extraJavaOptions": "-Da=b"}) == launch
    for setting in (
        "spark.jars", "spark.jars.packages", "spark.jars.repositories", "spark.jars.ivySettings", "spark.files",
        "spark.archives", "spark.submit.pyFiles", "spark.driver.extraClassPath", "spark.driver.extraLibraryPath",
        "spark.driver.defaultJavaOptions", "spark.driver.userClassPathFirst", "spark.kerberos.keytab",
        "spark.yarn.dist.files", "spark.kubernetes.file.upload.path", "spark.remote",
    ):  # fmt: skip
        assert prepared.launch({setting: "x"}) is None, f"{setting} is for Spark's scripts"
    for name in ("SPARK_CONF_DIR", "SPARK_SUBMIT_OPTS", "SPARK_DIST_CLASSPATH"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "/etc/spark")
            assert prepared.launch({}) is None


@pytest.mark.parametrize("name", ["spark-env.sh", "spark-defaults.conf"])
def test_a_prepared_start_gives_way_to_files_that_scripts_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.setenv("UNISONO_CACHE_DIR", str(tmp_path))
    prepared = PreparedStart(tmp_path, java_home())
    prepared.java_options()
    prepared.keep(Launch("java", "a:b", []))
    assert prepared.launch({}) is not None
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / name).write_text("")
    assert prepared.launch({}) is None


SHOWN = """
import sys
from unisono.pipeline.spark.executors import run_on_executors
from unisono.pipeline.spark.session import session
conf = dict(word.split("=", 1) for word in sys.argv[1:])
started = session(None, "shown", conf=conf)
java = started._jvm.java.lang
print(started.conf.get("spark.sql.shuffle.partitions", "-"), started.conf.get("spark.ui.enabled"))
print(started.conf.get("spark.master"), java.System.getProperty("given"), java.System.getProperty("java.class.path"))
print(run_on_executors(started, range(4), str))
"""


def started(*conf: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    command = [sys.executable, "-c", SHOWN, *conf]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_arguments_for_spark_submit_take_effect() -> None:
    """In the environment, where PySpark looks for them; what the caller says wins, our own defaults do not."""
    done = started(
        "spark.sql.shuffle.partitions=3",
        PYSPARK_SUBMIT_ARGS="--master local[3] --driver-class-path /more.jar "
        "--driver-java-options '-Dgiven=yes -XX:TieredStopAtLevel=1' "
        "--conf spark.sql.shuffle.partitions=7 --conf spark.ui.enabled=false pyspark-shell",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("3 false\nlocal[3] yes /more.jar:"), done.stdout
    assert done.stdout.endswith("['0', '1', '2', '3']\n")
    wrong = started(PYSPARK_SUBMIT_ARGS="--conf spark.ui.enabled=false")
    assert wrong.returncode != 0
    assert "PYSPARK_SUBMIT_ARGS must end with the word pyspark-shell" in wrong.stderr


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_named_master_wins_over_a_connect_server_of_the_environment() -> None:
    done = started("spark.master=local[2]", "spark.ui.enabled=false", SPARK_REMOTE="sc://127.0.0.1:1")
    assert done.returncode == 0, done.stderr
    assert "\nlocal[2,4] " in done.stdout
    assert done.stdout.endswith("['0', '1', '2', '3']\n")


AGAIN = """
import os, signal
from unisono.pipeline.spark.private import java_process
from unisono.pipeline.spark.session import session
one = session("local[1]", quick=True)
first = java_process(one)
one.stop()
two = session("local[1]", conf={"spark.driver.memory": "600m"}, quick=True)
second = java_process(two)
print(first.poll() is not None, two._jvm.java.lang.Runtime.getRuntime().maxMemory() >> 20)
os.kill(second.pid, signal.SIGKILL)
second.wait()
three = session("local[1]", quick=True)
print(three is not two, three.range(5).count())
"""


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_after_a_session_has_ended_there_is_another() -> None:
    """After `stop` with its own memory, and no Java is left behind; and where Java was killed."""
    done = subprocess.run([sys.executable, "-c", AGAIN], capture_output=True, text=True, timeout=240)
    assert (done.stdout, done.returncode) == ("True 600\nTrue 5\n", 0), done.stderr


@pytest.mark.timeout(300)
def test_packages_that_cannot_be_had_are_an_error(tmp_path: Path) -> None:
    """Resolving them is what Spark's scripts do: here it fails before anything is asked of anybody."""
    done = started(
        "spark.jars.packages=no.such:package:1.0", f"spark.jars.ivySettings={tmp_path / 'missing.xml'}"
    )
    assert done.returncode != 0
    assert "missing.xml" in done.stderr
    assert "Spark's scripts could not start Java; their output is above" in done.stderr


def test_a_java_that_ends_at_once_is_reported(tmp_path: Path) -> None:
    false = Launch("/bin/false", "", [])
    with pytest.raises(PipelineError, match="Java ended with code 1"):
        jvm.start(false, [], "1g")


def test_the_package_in_one_file(tmp_path: Path) -> None:
    """What executors get works by itself: SQL and all."""
    first = pack(tmp_path / "one.zip").read_bytes()
    assert pack(tmp_path / "two.zip").read_bytes() == first
    with zipfile.ZipFile(tmp_path / "one.zip") as archive:
        assert "unisono/store/sql/sqlite/queries.sql" in archive.namelist()
    code = (
        "import unisono; assert 'one.zip' in unisono.__file__, unisono.__file__\n"
        "from unisono.store.statements import load_migrations, load_queries\n"
        "assert load_migrations('sqlite') and load_queries('sqlite')\n"
        "import unisono.pipeline.jobs.export.job"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "one.zip")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr


def test_what_python_has_compiled_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "cache"))
    root = Path(packing.__file__).parents[2]
    py_compile.compile(str(root / "__init__.py"))
    outdated = root / "pipeline" / "errors.py"
    stale = Path(cache_from_source(str(outdated)))
    stale.parent.mkdir(parents=True)
    shutil.copy(str(py_compile.compile(str(root / "config.py"))), stale)
    archive = pack(tmp_path / "one.zip", compiled=True)
    with zipfile.ZipFile(archive) as opened:
        compiled = [name for name in opened.namelist() if name.endswith(".pyc")]
    assert compiled == ["unisono/__init__.pyc", "unisono/config.pyc"]
    code = "import unisono.config as a, unisono.pipeline.errors as b; print(a.__spec__.origin, b.__spec__.origin)"
    environment = {**os.environ, "PYTHONPATH": str(archive)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == [f"{archive}/unisono/config.pyc", f"{archive}/unisono/pipeline/errors.py"]


def test_nothing_else_imports_pyspark() -> None:
    code = (
        "import sys, unisono, unisono.cli.lake, unisono.node.supervisor, unisono.authority.loop\n"
        "loaded = [name for name in ('pyspark', 'pyarrow', 'deltalake', 'pandas') if name in sys.modules]\n"
        "assert not loaded, loaded"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
