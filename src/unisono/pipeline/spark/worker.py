"""Python workers of Spark that end before their work does.

`limit`, `show` and `take` stop tasks that have given enough rows: Java closes the worker's socket, and the worker,
about to write the next rows, ends with a BrokenPipeError. That is as it should be, but PySpark's daemon prints the
traceback of each into the notebook.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any, Final

from pyspark import TaskContext

_print_exc: Final = traceback.print_exc


def end_quietly() -> None:
    """On an executor: a worker whose reader has gone ends without a traceback. Other errors are printed as ever."""
    if TaskContext.get() is not None:
        traceback.print_exc = _print_unless_reader_left


def _print_unless_reader_left(*args: Any, **kwargs: Any) -> None:
    if not isinstance(sys.exception(), BrokenPipeError):
        _print_exc(*args, **kwargs)
