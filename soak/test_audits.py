"""Damage of random kinds to random events, again and again: the audit finds every piece of it.

SOAK_ROUNDS shortens or lengthens it; a seed that failed can be run again with -k '[17]'.
"""

from __future__ import annotations

import os
import random
import shutil

import pytest
from pyspark.sql import SparkSession
from tests.pipeline.corruptions import at_random
from tests.pipeline.jobs.audit.test_audit import Damager, damager, sound  # noqa: F401 (fixtures)
from tests.pipeline.planting import Planter

from unisono.pipeline.jobs.audit.job import AuditOptions, audit

SEEDS = range(100, 100 + int(os.environ.get("SOAK_ROUNDS", "300")) // 5)


@pytest.mark.parametrize("seed", SEEDS)
def test_all_damage_is_found(seed: int, spark: SparkSession, damager: Damager) -> None:  # noqa: F811
    chance = random.Random(seed)  # noqa: S311
    lake, _ = damager.copies(f"soak-{seed}")
    planter = Planter(lake)
    expected = at_random(planter, chance, chance.randrange(1, 200))
    planter.commit()
    report = audit(spark, lake, options=AuditOptions(sample=0))
    assert expected <= {(finding.kind, finding.committed_id) for finding in report.findings}
    shutil.rmtree(lake.storage.location)
