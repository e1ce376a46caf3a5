"""The pipeline's errors. Each text says what is wrong and what to do."""

from __future__ import annotations

import re
from typing import Final

from unisono.lake.errors import LakeError, error_text, one_line

_OWN: Final = re.compile(r"unisono\.(?:pipeline|lake)\.errors\.\w+: (.+)")
_RAISED: Final = re.compile(r"^(?:Caused by: |: )?[\w.$]*?(\w*(?:Error|Exception): .+)$", re.MULTILINE)


class PipelineError(Exception):
    """The job cannot be done; the step that raised this changed nothing."""


class NoJava(PipelineError):
    """Java is missing, or too old for Spark."""


class NoSuchStore(PipelineError):
    """The log cannot be opened."""


class StoreNotVisible(NoSuchStore):
    """The driver can read the log and the executors cannot."""


class NoSuchRange(PipelineError):
    """The requested committed ids are not in the log, or no longer."""


class Mismatch(PipelineError):
    """A copy differs from its original."""


class NoModel(PipelineError):
    """No model is given, or it cannot be used."""


class ModelContentChanged(PipelineError):
    """A model's content changed under the same version."""


class NoSuchPartition(PipelineError):
    """The lake has no event of a partition."""


class NoSuchMoment(PipelineError):
    """The lake does not reach a committed_id or a time."""


def brief(error: BaseException) -> str:
    """A failure in one line for people.

    Of a traceback that Spark passes on, from a task or from Java, the last error: it is the cause of the others.
    """
    if isinstance(error, PipelineError | LakeError):
        return one_line(error)
    text = error_text(error)
    for pattern in (_OWN, _RAISED):
        if found := pattern.findall(text):
            return str(found[-1])
    return f"{type(error).__name__}: {text.partition(chr(10))[0]}".removesuffix(": ")
