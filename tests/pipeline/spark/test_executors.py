from __future__ import annotations

import ast
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import unisono
from tests.pipeline.spark.on_executors import (
    add,
    die_once,
    differ,
    doubled,
    place_and_size,
    unknown_error,
    unusable,
)
from unisono.lake.errors import LakeUnusable
from unisono.pipeline.errors import Mismatch, brief
from unisono.pipeline.spark.executors import PLAN_BYTES_MAX, parallelism, run_on_executors, task_frame
from unisono.pipeline.spark.plans import plans_shown

SOURCES = Path(unisono.__file__).parent


@pytest.mark.parametrize("size", [10, PLAN_BYTES_MAX // 4], ids=["in the plan", "as rows"])
def test_each_task_is_a_spark_task_of_its_own(spark: SparkSession, size: int) -> None:
    plans: list[str] = []
    with plans_shown(plans.append):
        found = run_on_executors(spark, [(number, bytes(size)) for number in range(7)], place_and_size)
    assert found == [(number, number, size) for number in range(7)]
    [plan] = plans
    assert plan.startswith("-- tests.pipeline.spark.on_executors.place_and_size\n== Physical Plan ==")
    assert "MapInArrow" in plan
    assert ("Exchange" in plan) == (size > 10), "few tasks need no shuffle"
    bounded = run_on_executors(spark, [(n, bytes(size)) for n in range(7)], place_and_size, at_once=3)
    assert [number for number, _, _ in bounded] == list(range(7))
    assert {place for _, place, _ in bounded} == {0, 1, 2}, "three at a time"


def test_no_tasks(spark: SparkSession) -> None:
    assert run_on_executors(spark, [], place_and_size) == []
    assert task_frame(spark, [], doubled, "number BIGINT").collect() == []


def test_what_tasks_share_goes_with_the_function(spark: SparkSession) -> None:
    shared = {f"key-{number}": number for number in range(200_000)}  # more than fits beside the plan
    assert run_on_executors(spark, ["key-7", "key-199999"], partial(add, shared)) == [8, 200_000]


def test_rows_of_tasks_in_their_order(spark: SparkSession) -> None:
    rows = task_frame(spark, [3, 1, 2], doubled, "number BIGINT").collect()
    assert [row.number for row in rows] == [3, 3, 1, 1, 2, 2]


def test_our_errors_arrive_as_what_they_are(spark: SparkSession) -> None:
    with pytest.raises(Mismatch, match=r"^event 7 differs$"):
        run_on_executors(spark, ["7"], differ)
    with pytest.raises(LakeUnusable, match=r"^the lake is damaged: restore it$"):
        run_on_executors(spark, ["file"], unusable)


def test_other_errors_are_told_in_one_line(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="out of memory") as raised:
        run_on_executors(spark, ["memory"], unknown_error)
    assert brief(raised.value) == "RuntimeError: out of memory"


def test_a_lost_worker_is_made_up_for(spark: SparkSession, tmp_path: Path) -> None:
    markers = [str(tmp_path / name) for name in ("a", "b")]
    assert run_on_executors(spark, markers, die_once) == ["survived a", "survived b"]


def test_parallelism_is_that_of_the_session(spark: SparkSession) -> None:
    assert parallelism(spark) == 2


CLASSIC_ONLY = {
    "SparkContext", "sparkContext", "parallelize", "rdd", "RDD", "broadcast", "Broadcast", "_jvm", "_jsc",
    "_sc", "_jdf",
}  # fmt: skip


def test_nothing_needs_a_classic_session() -> None:
    """Spark Connect has no context, no RDDs and no Java; one module has what is for classic sessions only."""
    modules = [*(SOURCES / "pipeline").rglob("*.py"), *(SOURCES / "cli" / "lake").rglob("*.py")]
    assert len(modules) > 50
    found = [
        f"{path.relative_to(SOURCES)}:{getattr(node, 'lineno', 0)}: {name}"
        for path in modules
        if path != SOURCES / "pipeline" / "spark" / "private.py"
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        for name in _names(node)
        if name in CLASSIC_ONLY
    ]
    assert not found


def _names(node: ast.AST) -> list[str]:
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return [name]
        case ast.ImportFrom(names=aliases):
            return [alias.name for alias in aliases]
        case ast.Constant(value=str(text)):
            return [text]  # getattr(spark, "sparkContext")
        case _:
            return []
