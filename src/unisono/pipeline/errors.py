"""What can go wrong in the pipeline, each with a text that says what to do."""

from __future__ import annotations

import re
from typing import Final

from unisono.lake.errors import LakeError, one_line, plain

_OWN: Final = re.compile(r"unisono\.(?:pipeline|lake)\.errors\.\w+: (.+)")
_RAISED: Final = re.compile(r"^(?:Caused by: |: )?[\w.$]*?(\w*(?:Error|Exception): .+)$", re.MULTILINE)


class PipelineError(Exception):
    """The job cannot be done as asked; nothing was changed by the step that raised it."""


class NoJava(PipelineError):
    """Spark needs a Java that is not there, or too old."""


class NoSuchStore(PipelineError):
    """The log cannot be read where it was said to be."""


class StoreNotVisible(NoSuchStore):
    """The driver can read the log and the executors cannot."""


class NoSuchRange(PipelineError):
    """The committed ids asked for are not (or no longer) in the log."""


class Mismatch(PipelineError):
    """A copy is not what it was copied from."""


class NoModel(PipelineError):
    """No model was named, or the one that was cannot be used."""


class ModelContentChanged(PipelineError):
    """A model has another content than before under the same version."""


class NoSuchPartition(PipelineError):
    """No event of a partition is in the lake."""


class NoSuchMoment(PipelineError):
    """A committed_id or a time that the lake does not reach back or forward to."""


def brief(error: BaseException) -> str:
    """What a failure comes down to, in one line for a person.

    Spark hands on the traceback of a task or of Java: of that the last error, which is the cause of the others.
    """
    if isinstance(error, PipelineError | LakeError):
        return one_line(error)
    text = plain(error)
    for pattern in (_OWN, _RAISED):
        if found := pattern.findall(text):
            return str(found[-1])
    return f"{type(error).__name__}: {text.partition(chr(10))[0]}".removesuffix(": ")
