"""The process in which the console runs queries over the lake. It can be killed, and its memory is limited.

It ends without the interpreter's clean-up: threads of Arrow may still call Python then, which aborts the process.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa

from unisono.console.process_requests import AskSql, ProcessAnswer
from unisono.lake.errors import LakeUnusable
from unisono.lake.lake import Lake
from unisono.lake.sql import MEMORY_BYTES, QueryRefused, query
from unisono.node.model_review import NICENESS, LineOutput

QUERY_BYTES: Final = MEMORY_BYTES + (768 << 20)
"""What the process may allocate beside what its libraries reserve at the start: DuckDB's share, what Arrow
and delta-rs read ahead, and values that DuckDB does not count."""


def answer(request: AskSql) -> ProcessAnswer:
    try:
        return ProcessAnswer(msgspec.to_builtins(query(Lake.at(request.lake, request.options), request.sql)))
    except (QueryRefused, LakeUnusable, OSError) as error:
        return ProcessAnswer(error=str(error))
    except (MemoryError, pa.ArrowMemoryError):
        return ProcessAnswer(error="stopped: the query needs too much memory")


def _limit_memory() -> None:
    """Where the system says how much is reserved already (Linux)."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text("ascii").splitlines()
        reserved = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData:"))
        resource.setrlimit(resource.RLIMIT_DATA, (reserved + QUERY_BYTES, reserved + QUERY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    """The process: lines of requests in, one line of answer for each out."""
    out = LineOutput()
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    pa.set_cpu_count(1)
    pa.set_io_thread_count(2)
    _limit_memory()
    decode = msgspec.json.Decoder(AskSql).decode
    for line in iter(sys.stdin.buffer.readline, b""):
        try:
            out.send(msgspec.json.encode(answer(decode(line))))
        except BrokenPipeError:
            os._exit(1)  # the node is gone
    os._exit(0)


if __name__ == "__main__":
    main()
