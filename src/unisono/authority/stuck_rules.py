"""Rules that cannot be stopped: C code that never returns keeps its process from doing anything about it.

So the authority notes in memory that it shares with the node which rule it calls, for which event and since when. The
node looks at it from its own process. A rule of an event that is being judged is stopped after `rule_timeout_s`; one
that still runs `GRACE_S` later cannot be stopped, and the node ends the authority. It writes down first which event
it was, so that the same event is refused after the restart, instead of ending the server each time its client sends
it again. The note counts for the model that was in force: another one may have mended the rule.

A rule that replays an event of the log is never ended: that event has its place, and would come again at every start.
The node says every few seconds which it is.
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from unisono.model.rules import SCHEMA_FIELD
from unisono.vocabulary import FieldError

log = logging.getLogger("unisono.node")

GRACE_S: Final = 5.0
"""From a rule's limit to the end of the process: whatever can be stopped was stopped a thousand times by then."""

SAY_EVERY_S: Final = 5.0

STUCK_FILE: Final = "stuck-events.jsonl"
"""In the data directory: the events that are refused because a rule did not return from them."""

STUCK_MAX: Final = 1_000
"""Events remembered; each has ended the server once."""

_CALL: Final = struct.Struct(
    "=dBH"
)  # since when, in the clock that all processes share, or 0; judging?; the rule
_DIGEST: Final = struct.Struct("=H")
_SINCE_BYTES: Final = 8
_HASH: Final = slice(1024, 1056)
_NO_HASH: Final = bytes(32)
_ID_SIZE_AT: Final = 1056
_ID_AT: Final = 1057
_DIGEST_AT: Final = 2048
_ROOM: Final = 4096
_TEXT_MAX: Final = 800
_ID_BYTES_MAX: Final = 255


class Call(msgspec.Struct, frozen=True):
    """What the authority was doing."""

    since_s: float
    judging: bool
    rule: str
    event_id: str
    hash: str
    digest: str


class StuckRule(msgspec.Struct, frozen=True):
    """One line of the file."""

    event_id: str
    hash: str
    model: str
    rule: str
    at_ms: int


class RunningCall:
    """The shared note; the authority writes it, the node reads it.

    What it says of an event is written once for all its rules, and only if there is one.
    """

    def __init__(self, refused: dict[tuple[str, str], StuckRule] | None = None) -> None:
        self._memory = mmap.mmap(-1, _ROOM)
        self._since_s = memoryview(self._memory)[:_SINCE_BYTES].cast("d")
        self._refused = refused or {}
        self._event: tuple[str, bytes, str] | None = None
        """The event of the next calls, while it is not written yet."""
        self._digest = ""
        """Of the model that is written there."""
        self._calls: tuple[dict[str, bytes], dict[str, bytes]] = {}, {}
        """What is written of a rule: while an event is replayed, and while one is judged."""

    def judge(self, event_id: str, hash: bytes, digest: str) -> FieldError | None:
        """The next calls are for this event; or why none is to be made for it."""
        if self._refused:
            stuck = self._refused.get((hash.hex(), digest))
            if stuck is not None:
                says = f"the rule {stuck.rule!r} did not return from this event before, and ended the server"
                return FieldError(SCHEMA_FIELD, f"{says}; it is refused as long as this model is in force")
        self._event = event_id, hash, digest
        return None

    def replay(self, event_id: str) -> None:
        """The next call is for this event of the log."""
        self._event = event_id, _NO_HASH, ""

    def begin(self, rule: str, limited: bool) -> None:
        memory = self._memory
        if self._event is not None:
            event_id, hash, digest = self._event
            self._event = None
            text = event_id.encode()
            if len(text) > _ID_BYTES_MAX:
                text = text[:_ID_BYTES_MAX]
            memory[_HASH] = hash
            memory[_ID_SIZE_AT] = len(text)
            memory[_ID_AT : _ID_AT + len(text)] = text
            if digest != self._digest:
                self._digest = digest
                model = digest.encode()
                memory[_DIGEST_AT : _DIGEST_AT + _DIGEST.size + len(model)] = _DIGEST.pack(len(model)) + model
        call = self._calls[limited].get(rule)
        if call is None:
            name = rule.encode()[:_TEXT_MAX]
            call = self._calls[limited][rule] = _CALL.pack(0.0, limited, len(name))[_SINCE_BYTES:] + name
        memory[_SINCE_BYTES : _SINCE_BYTES + len(call)] = call
        self._since_s[0] = time.monotonic()

    def end(self) -> None:
        self._since_s[0] = 0.0

    def read(self) -> Call | None:
        """The call under way. It may end while it is read: who acts on it looks again."""
        memory = self._memory
        since_s, judging, size = _CALL.unpack_from(memory, 0)
        if not since_s:
            return None
        rule = _text(memory, _CALL.size, size)
        event_id = _text(memory, _ID_AT, memory[_ID_SIZE_AT])
        digest = _text(memory, _DIGEST_AT + _DIGEST.size, *_DIGEST.unpack_from(memory, _DIGEST_AT))
        return Call(since_s, bool(judging), rule, event_id, memory[_HASH].hex(), digest)


def _text(memory: mmap.mmap, at: int, size: int) -> str:
    return memory[at : at + size].decode("utf-8", "replace")


class StuckFile:
    """What the node remembers of rules that did not return."""

    def __init__(self, data: Path) -> None:
        self._path = data / STUCK_FILE

    def load(self) -> dict[tuple[str, str], StuckRule]:
        """The events to refuse, by hash and model; a line that cannot be read counts for nothing."""
        return {(stuck.hash, stuck.model): stuck for stuck in self._lines()}

    def add(self, call: Call, now_ms: int) -> None:
        """Durable before anything else is done about it."""
        kept = [*self._lines()][-(STUCK_MAX - 1) :]
        kept.append(StuckRule(call.event_id, call.hash, call.digest, call.rule, now_ms))
        beside = self._path.with_suffix(".new")
        with beside.open("wb") as file:
            file.writelines(msgspec.json.encode(stuck) + b"\n" for stuck in kept)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._path)
        directory = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _lines(self) -> Iterator[StuckRule]:
        try:
            lines = self._path.read_bytes().splitlines()
        except FileNotFoundError:
            return
        for line in lines:
            try:
                yield msgspec.json.decode(line, type=StuckRule)
            except msgspec.DecodeError:
                log.warning(
                    "a line of %s cannot be read and is ignored", self._path, extra={"file": str(self._path)}
                )


def is_standing(pid: int) -> bool:
    """Whether a process was stopped, by a signal or a debugger."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] in ("T", "t")


class CallWatch:
    """The node's look at the authority's rules."""

    def __init__(self, running: RunningCall, file: StuckFile, timeout_s: float) -> None:
        self._running = running
        self._file = file
        self._timeout_s = timeout_s
        self._said_s = 0.0
        self._stood_s = 0.0
        self._remembered = False

    def look(self, now_s: float, now_ms: int, *, standing: bool = False) -> bool:
        """Whether the authority is to be ended: a rule keeps it that cannot be stopped. It is written down then.

        `standing`: somebody has stopped the process, and no rule is to blame for that.
        """
        call = self._running.read()
        if standing:
            self._stood_s = now_s
        if call is None or standing:
            return False
        took_s = now_s - max(call.since_s, self._stood_s)
        if call.judging and took_s > self._timeout_s + GRACE_S:
            self._remember(call, now_ms, f"has not returned for {took_s:.0f} s and cannot be stopped")
            return True
        if took_s > max(SAY_EVERY_S, 2 * self._timeout_s) and now_s - self._said_s > SAY_EVERY_S:
            self._said_s = now_s
            log.critical(
                "the rule %s has not returned for %.0f s from event %r, which is being %s; every commit waits for it",
                call.rule,
                took_s,
                call.event_id,
                "judged" if call.judging else "replayed from the log",
                extra={"rule": call.rule, "event_id": call.event_id, "running_s": round(took_s, 1)},
            )
        return False

    def ended(self, now_s: float, now_ms: int) -> None:
        """The authority ended by itself; perhaps a rule took all the memory there was."""
        call = self._running.read()
        if self._remembered or call is None:
            return
        if call.judging and now_s - max(call.since_s, self._stood_s) > self._timeout_s:
            self._remember(call, now_ms, "was still running past its limit when the authority ended")

    def _remember(self, call: Call, now_ms: int, says: str) -> None:
        log.critical(
            "the rule %s %s; its event %r is refused from now on (%s)",
            call.rule,
            says,
            call.event_id,
            STUCK_FILE,
            extra={"rule": call.rule, "event_id": call.event_id, "file": STUCK_FILE},
        )
        self._file.add(call, now_ms)
        self._remembered = True
