from __future__ import annotations

import pytest
from pyspark import SparkContext

from tests.pipeline.jobs.erase.prepared import Prepared
from tests.pipeline.jobs.erase.test_erase import prepare
from unisono.lake.lake import Lake


@pytest.fixture(scope="session")
def prepared(context: SparkContext, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("prepared")
    return Prepared(folder, prepare(context, folder / "data", Lake.at(str(folder / "lake"))))
