"""The one line that a failure in a task comes down to."""

from __future__ import annotations

import pytest

from unisono.lake.errors import CommitConflict, LakeUnusable, one_line
from unisono.pipeline.errors import Mismatch, PipelineError, brief


@pytest.mark.parametrize("kind", [LakeUnusable, CommitConflict, PipelineError, Mismatch])
def test_the_text_of_our_own_error_is_found_in_a_workers_traceback(kind: type[Exception]) -> None:
    traceback = (
        "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
        f'  File "worker.py", line 1, in main\n{kind.__module__}.{kind.__qualname__}: the file is damaged\n'
    )
    assert brief(RuntimeError(traceback)) == "the file is damaged"


def test_missing_credentials_are_called_so() -> None:
    """delta-rs names the last place where it looked."""
    place = "http://169.254.169.254/latest/api/token"
    cause = OSError(f"Kernel error\n  \u21b3 Generic S3 error: Error performing PUT {place} in 5s: timed out")
    text = brief(LakeUnusable(f"s3://a/log cannot be opened: {one_line(cause)}"))
    assert text == (
        "s3://a/log cannot be opened: no credentials in options, environment or profile, and none from this "
        f"machine's cloud: Kernel error: Generic S3 error: Error performing PUT {place} in 5s: timed out"
    )
