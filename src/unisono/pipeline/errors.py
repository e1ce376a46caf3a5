"""The pipeline's errors. Each text says what is wrong and what to do."""

from __future__ import annotations

import re
from typing import Final

from unisono.lake import errors as lake_errors
from unisono.lake.errors import LakeError, error_text, one_line

_OWN: Final = re.compile(r"unisono\.(pipeline|lake)\.errors\.(\w+): (.+)")
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


def own_error(error: BaseException) -> PipelineError | LakeError | None:
    """The error of the pipeline or the lake that a task on an executor raised, from the traceback in Spark's text."""
    found = _OWN.findall(error_text(error))
    if not found:
        return None
    module, name, text = found[-1]
    kind = globals().get(name) if module == "pipeline" else getattr(lake_errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, PipelineError | LakeError)):
        return PipelineError(text)
    return kind(text)


def brief(error: BaseException) -> str:
    """A failure in one line for people.

    Of a traceback that Spark passes on, from a task or from Java, the last error: it is the cause of the others.
    """
    if isinstance(error, PipelineError | LakeError):
        return one_line(error)
    if (own := own_error(error)) is not None:
        return one_line(own)
    text = error_text(error)
    if found := _RAISED.findall(text):
        return str(found[-1])
    return f"{type(error).__name__}: {text.partition(chr(10))[0]}".removesuffix(": ")
