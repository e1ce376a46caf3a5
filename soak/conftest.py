"""The fixtures of the pipeline's tests, once for all soak tests: a second Spark would end the first."""

from __future__ import annotations

from tests.pipeline.conftest import (  # noqa: F401 (fixtures)
    _quick_starts,
    history,
    records,
    spark,
    store,
)
