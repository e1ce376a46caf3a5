"""The one line that a failure in a task comes down to."""

from __future__ import annotations

import pytest

from unisono.lake.errors import CommitConflict, LakeUnusable
from unisono.pipeline.errors import Mismatch, PipelineError, brief


@pytest.mark.parametrize("kind", [LakeUnusable, CommitConflict, PipelineError, Mismatch])
def test_the_text_of_our_own_error_is_found_in_a_workers_traceback(kind: type[Exception]) -> None:
    traceback = (
        "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
        f'  File "worker.py", line 1, in main\n{kind.__module__}.{kind.__qualname__}: the file is damaged\n'
    )
    assert brief(RuntimeError(traceback)) == "the file is damaged"
