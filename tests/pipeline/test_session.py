from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from unisono.pipeline import jvm, session
from unisono.pipeline.errors import NoJava, PipelineError
from unisono.pipeline.jvm import Launch, Prepared, cache_directory, java_home, java_version
from unisono.pipeline.packing import pack


def test_masters() -> None:
    assert session._with_retries("local[*]") == "local[*,4]"
    assert session._with_retries("local") == "local[1,4]"
    assert session._with_retries("local[2,7]") == "local[2,7]"
    assert session._with_retries("spark://h:7077") == "spark://h:7077"


def test_settings_of_the_caller_win() -> None:
    settings = session._settings("local[*]", {"spark.driver.memory": "3g"}, progress=True)
    assert settings["spark.driver.memory"] == "3g"
    assert settings["spark.ui.showConsoleProgress"] == "true"
    assert 2 <= int(settings["spark.sql.shuffle.partitions"]) <= 8
    assert settings["spark.driver.host"] == "127.0.0.1"
    assert "spark.driver.host" not in session._settings("spark://h:7077", {}, progress=False)


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
        ("?", "does not say"),
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
    prepared = Prepared(Path("/spark"), java_home())
    assert prepared.launch({}) is None
    [logging] = prepared.java_options()
    assert logging.startswith("-Dlog4j2.configurationFile=file:")
    launch = Launch("java", "a:b", ["-Dx=y"])
    prepared.keep(launch)
    assert prepared.launch({}) == launch
    assert prepared.launch({"spark.jars": "more.jar"}) is None
    monkeypatch.setenv("SPARK_CONF_DIR", "/etc/spark")
    assert prepared.launch({}) is None


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
        "import unisono.pipeline.export"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "one.zip")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr


def test_nothing_else_imports_pyspark() -> None:
    code = (
        "import sys, unisono, unisono.cli.lake, unisono.front.node, unisono.authority.loop\n"
        "loaded = [name for name in ('pyspark', 'pyarrow', 'deltalake', 'pandas') if name in sys.modules]\n"
        "assert not loaded, loaded"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
