from __future__ import annotations

import pytest

from tests.pipeline.jobs.erase.erasing import prepare
from tests.pipeline.jobs.erase.prepared import Prepared
from unisono.lake.lake import Lake


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("prepared")
    return Prepared(folder, prepare(folder / "data", Lake.at(str(folder / "lake"))))
