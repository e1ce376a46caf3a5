"""The node's side of a process of the console: started when first needed, one request at a time, killed when late."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from typing import Final

import msgspec

from unisono.console.errors import ConsoleBusy, ConsoleRefused
from unisono.console.process_requests import ProcessAnswer
from unisono.vocabulary import Json

log = logging.getLogger("unisono.console")

ANSWER_S: Final = 30.0
"""For one request; a history of the largest size is folded in a few seconds, and a query ends before."""

WAITING_MAX: Final = 4
"""Requests that wait for their turn; one more is refused."""

IDLE_S: Final = 300.0
"""After this long without a request the process is ended, and its memory given back."""

END_GRACE_S: Final = 2.0
ANSWER_BYTES_MAX: Final = 32 << 20


class ProcessClient:
    """Requests to the process, in turn.

    Invariant: `_process` is set exactly while a process runs that has answered everything it was asked.
    """

    def __init__(self, what: str, module: str, start: msgspec.Struct | None = None) -> None:
        """`what` it does, for messages; `module` is run; `start` is its first line."""
        self._what = what
        self._module = module
        self._first = start
        self._lock = asyncio.Lock()
        self._waiting = 0
        self._process: asyncio.subprocess.Process | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None
        self._closed = False

    async def ask(self, request: msgspec.Struct) -> Json:
        """Raises ConsoleRefused with the reason, or ConsoleBusy."""
        if self._waiting >= WAITING_MAX:
            raise ConsoleBusy(f"other requests for a {self._what} are waiting; try again")
        self._waiting += 1
        try:
            async with self._lock:
                answer = await self._ask(request)
        finally:
            self._waiting -= 1
        if answer.error:
            raise ConsoleRefused(answer.error)
        body: Json = answer.body
        return body

    async def close(self) -> None:
        self._closed = True
        async with self._lock:
            await self._end()

    async def _ask(self, request: msgspec.Struct) -> ProcessAnswer:
        if self._closed:
            raise ConsoleBusy("the server is stopping")
        if self._idle is not None:
            self._idle.cancel()
        process, self._process = self._process or await self._start(), None
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(msgspec.json.encode(request) + b"\n")
            async with asyncio.timeout(ANSWER_S):
                await process.stdin.drain()
                line = await process.stdout.readline()
            if not line.endswith(b"\n"):
                raise ConsoleRefused(
                    f"the process of the {self._what} ended: it needed too much memory, or the server's log says why"
                )
            answer = msgspec.json.decode(line, type=ProcessAnswer)
        except TimeoutError:
            log.warning(
                "%s stopped: no answer within %g s", self._what, ANSWER_S, extra={"timeout_s": ANSWER_S}
            )
            raise ConsoleRefused(f"stopped: the {self._what} took longer than {ANSWER_S:g} s") from None
        except (ConnectionError, ValueError) as error:
            raise ConsoleRefused(f"the process of the {self._what} failed: {error}") from None
        else:
            self._process = process
            self._idle = asyncio.get_running_loop().call_later(IDLE_S, self._end_idle)
            return answer
        finally:
            if self._process is not process:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    async def _start(self) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            self._module,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=ANSWER_BYTES_MAX,
        )
        assert process.stdin is not None
        if self._first is not None:
            process.stdin.write(msgspec.json.encode(self._first) + b"\n")
        return process

    def _end_idle(self) -> None:
        async def end() -> None:
            async with self._lock:
                if self._idle is not None and self._idle.when() <= asyncio.get_running_loop().time():
                    await self._end()

        self._ending = asyncio.get_running_loop().create_task(end())

    async def _end(self) -> None:
        process, self._process = self._process, None
        if self._idle is not None:
            self._idle.cancel()
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), END_GRACE_S)
        except TimeoutError:
            process.kill()
            await process.wait()
