"""Calling an operator's rules: each is timed and limited, none can end the process, and what goes wrong is counted.

This is the one place of the model that looks at a clock. While an event is judged its rules have `timeout_s` seconds,
in all its partitions together; then the one that is running is stopped and the event refused. An event of the log is
replayed without a limit: what was accepted once means the same everywhere, however long a machine takes over it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic, perf_counter
from typing import Any, Protocol

from unisono.model.authorship import UNKNOWN, Authorship
from unisono.model.freeze import FORGETFUL, Copies
from unisono.model.journal import Journal
from unisono.model.registry import ERRORS_MAX
from unisono.model.rule_timeout import BRIEF_S, Limit, RuleTimeout, limit_of_this_thread
from unisono.model.rules import SCHEMA_FIELD, Event, Rule, RuleFailed, Rules
from unisono.model.tracked import TrackedDict
from unisono.model.values import copied, packed, unpacked
from unisono.vocabulary import FieldError, JsonObject

RULE_BUDGET_MS = 50.0
"""How long one rule may take before it is called slow: commits of everyone wait for it."""

LEAST_S = 0.001
"""What a rule gets when the rules before it have used up nearly all the time of their event."""

LOG_INTERVAL_S = 10.0
"""One line per rule and kind of trouble in this time; the line says how many were left out."""

_RETURNS_NOTHING = "a reducer changes the state in place and returns nothing"

log = logging.getLogger("unisono.model")


class RuleWatch(Protocol):
    """Called around every rule, so that a supervisor can end a process whose rule cannot be stopped."""

    def begin(self, rule: str, limited: bool) -> None: ...

    def end(self) -> None: ...


class RuleVerdict:
    """The event for which rules are called, in one partition or in many.

    Rules see the payload itself. After every call it is packed again, and put back as it was if a rule changed it, so
    that no rule can change what others see. `copies` are what reducers put of it into the states. `event` is what
    all rules see, None where each gets its own.
    """

    __slots__ = ("_packed", "by", "copies", "event", "payload", "spent_s")

    def __init__(self) -> None:
        self.copies = Copies()
        self.begin({"schema": "", "data": None}, UNKNOWN)

    def begin(self, payload: Any, by: Authorship) -> None:
        """The next rules are called for this event."""
        self.payload = payload
        self.by = by
        self.spent_s = 0.0
        self.copies.forget()
        self._packed = packed(payload)
        self.event = None if by.claims or self._packed is None else self.make_event()

    def make_event(self) -> Event:
        """The payload as a rule sees it; a copy where it cannot be compared."""
        return _event(self.payload if self._packed is not None else copied(self.payload), self.by)

    def called(self, event: Event) -> None:
        """A rule had this in its hands."""
        if event.meta or event.claims:
            self.event = None  # they may be no part of the payload: the next rule gets its own
        if self._packed is not None and packed(self.payload) != self._packed:
            before = unpacked(self._packed)
            for key in ("data", "meta"):
                shown = self.payload.get(key)
                if isinstance(shown, dict):
                    shown.clear()
                    shown.update(before[key])
                elif isinstance(shown, list):
                    shown[:] = before[key]


class RuleCalls:
    """Runs the rules of one model against states, and keeps count per rule label.

    `running` names the rule that is called without a limit; `watch` is called around every rule. `quiet`: failures
    are counted and not logged.
    """

    def __init__(self, rules: Rules, budget_ms: float = RULE_BUDGET_MS) -> None:
        self.rules = rules
        self.budget_s = budget_ms / 1000
        self._unremarkable_s = min(BRIEF_S, self.budget_s)
        self.clock: Callable[[], float] = perf_counter
        self.timeout_s: float | None = None
        self.slow: dict[str, int] = {}
        self.failed: dict[str, int] = {}
        self.stopped: dict[str, int] = {}
        self.running: str | None = None
        self.watch: RuleWatch | None = None
        self.quiet = False
        self._limit: Limit | None = None
        self._judged = RuleVerdict()
        self._logged: dict[tuple[str, str], tuple[float, int]] = {}

    def refusals(
        self, state: TrackedDict, journal: Journal, payload: Any, by: Authorship = UNKNOWN
    ) -> list[FieldError]:
        """What the checks of the payload's schema say; the state is left as it was."""
        found: list[FieldError] = []
        checks = self.rules.checks(payload["schema"])
        if not checks:
            return found
        judged = self._judged
        if judged.payload is not payload or judged.by is not by:
            judged.begin(payload, by)
        entries = journal.entries
        for rule in checks:
            unchanged = len(entries)
            over = False
            try:
                found += self._judge(rule, state)
            except RuleTimeout:
                found.append(self._stopped("check", rule))
                over = True
            except (Exception, SystemExit):
                self._failure(rule)
                found.append(FieldError(SCHEMA_FIELD, _says("check", rule)))
            if len(entries) != unchanged:
                journal.undo_all_but(unchanged)
                self._report(rule, "meddling", "the check %s changed the state; undone", exc_info=False)
            if over:
                break
        return found[:ERRORS_MAX] if found else found

    def reduce(
        self,
        state: TrackedDict,
        journal: Journal,
        payload: Any,
        by: Authorship = UNKNOWN,
        *,
        last: bool = False,
    ) -> None:
        """Let the schema's reducer change the state; `RuleFailed`, and no change, when it cannot.

        `last`: nobody uses the payload after this.
        """
        rule = self.rules.reducer(payload["schema"])
        if rule is None:
            return
        judged = self._judged
        if judged.payload is not payload or judged.by is not by:
            judged.begin(payload, by)
        unchanged = len(journal.entries)
        journal.copies = judged.copies
        try:
            if self._judge(rule, state, last) is not None:
                raise TypeError(_RETURNS_NOTHING)
        except RuleTimeout as error:
            journal.undo_all_but(unchanged)
            raise RuleFailed(self._stopped("reducer", rule).message) from error
        except (Exception, SystemExit) as error:
            journal.undo_all_but(unchanged)
            self._failure(rule)
            raise RuleFailed(_says("reducer", rule)) from error
        finally:
            journal.copies = FORGETFUL

    def replay(
        self, state: TrackedDict, journal: Journal, payload: Any, by: Authorship, *, shared: bool
    ) -> None:
        """As `reduce`, for an event of the log: without a limit. `shared`: others use the payload too."""
        rule = self.rules.reducer(payload["schema"])
        if rule is None:
            return
        unchanged = len(journal.entries)
        event = _event(copied(payload) if shared else payload, by)
        try:
            if self._timed(rule, state, event) is not None:
                raise TypeError(_RETURNS_NOTHING)
        except (Exception, SystemExit) as error:
            journal.undo_all_but(unchanged)
            self._failure(rule)
            raise RuleFailed(_says("reducer", rule)) from error

    def undo(
        self, state: TrackedDict, journal: Journal, payload: Any, by: Authorship = UNKNOWN
    ) -> list[JsonObject] | None:
        """The payloads of the events that take this one back, from the state before it; None where nothing does."""
        rule = self.rules.undoing(payload["schema"])
        if rule is None:
            return None
        mark = journal.mark()
        try:
            made = rule.call(state, _event(copied(payload), by))
            return (
                None
                if made is None
                else [{"schema": each.schema, "data": copied(each.data)} for each in made]
            )
        except (Exception, SystemExit) as error:
            # No traceback: a draft that no longer fits the state may come here before it is found not to apply.
            self.failed[rule.label] = self.failed.get(rule.label, 0) + 1
            cause = repr(error).replace("%", "%%")
            says = f"the rule %s failed with {cause}; its event cannot be taken back"
            self._report(rule, "failed", says, exc_info=False)
            return None
        finally:
            journal.rollback(mark)

    def rest(self) -> None:
        """No event is judged for a while."""
        if self._limit is not None:
            self._limit.rest()

    def _judge(self, rule: Rule, state: TrackedDict, last: bool = False) -> Any:
        """Call a rule for the event that is being judged: what it takes counts for the event."""
        judged = self._judged
        event = judged.event or judged.make_event()
        timeout_s = self.timeout_s
        if timeout_s is None:
            try:
                return self._timed(rule, state, event)
            finally:
                judged.called(event)
        left_s = timeout_s - judged.spent_s
        if left_s < LEAST_S:
            left_s = LEAST_S
        limit, watch = self._limit or self._make_limit(), self.watch
        if watch is not None:
            watch.begin(rule.label, True)
        try:
            return limit.run(left_s, rule.call, state, event)
        finally:
            took_s = monotonic() - limit.spent.began_s
            if watch is not None:
                watch.end()
            if not last:
                judged.called(event)
            if took_s < self._unremarkable_s:
                judged.spent_s += took_s
            else:
                judged.spent_s += limit.spent.counted_s(left_s)
                self._note_time(rule, took_s)

    def _make_limit(self) -> Limit:
        self._limit = limit = limit_of_this_thread()
        return limit

    def _timed(self, rule: Rule, state: TrackedDict, event: Event) -> Any:
        """Call a rule without a limit."""
        clock, watch = self.clock, self.watch
        self.running = rule.label
        if watch is not None:
            watch.begin(rule.label, False)
        started = clock()
        try:
            return rule.call(state, event)
        finally:
            took_s = clock() - started
            self.running = None
            if watch is not None:
                watch.end()
            if took_s > self.budget_s:
                self._note_time(rule, took_s)

    def _note_time(self, rule: Rule, took_s: float) -> None:
        if took_s <= self.budget_s:
            return
        self.slow[rule.label] = self.slow.get(rule.label, 0) + 1
        budget_ms = self.budget_s * 1000
        says = f"the rule %s took {took_s * 1000:.0f} ms; its budget is {budget_ms:g} ms"
        self._report(rule, "slow", says, exc_info=False)

    def _failure(self, rule: Rule) -> None:
        self.failed[rule.label] = self.failed.get(rule.label, 0) + 1
        self._report(rule, "failed", "the rule %s failed; its event is refused", exc_info=True)

    def _stopped(self, kind: str, rule: Rule) -> FieldError:
        self.stopped[rule.label] = self.stopped.get(rule.label, 0) + 1
        says = f"the rule %s was stopped, its event has had {self.timeout_s:g} s; the event is refused"
        self._report(rule, "stopped", says, exc_info=True)
        return FieldError(
            SCHEMA_FIELD,
            f"the {kind} {rule.name!r} of {rule.schema!r} was stopped: the rules of one event have"
            f" {self.timeout_s:g} s in all its partitions together (rule_timeout_s)",
        )

    def _report(self, rule: Rule, trouble: str, says: str, exc_info: bool) -> None:
        if self.quiet:
            return
        now = perf_counter()
        last, left_out = self._logged.get((rule.label, trouble), (None, 0))
        if last is not None and now - last < LOG_INTERVAL_S:
            self._logged[rule.label, trouble] = (last, left_out + 1)
            return
        self._logged[rule.label, trouble] = (now, 0)
        if left_out:
            says += f" ({left_out} more since the last such line)"
        log.warning(says, rule.label, exc_info=exc_info)


def _event(payload: Any, by: Authorship) -> Event:
    """`claims` are copied: several events have the same."""
    claims: Any = copied(by.claims) if by.claims else {}
    return Event(
        payload["schema"],
        payload["data"],
        payload.get("meta") or {},
        by.client_id,
        by.user_id,
        claims,
        by.committed_at,
    )


def _says(kind: str, rule: Rule) -> str:
    return f"the {kind} {rule.name!r} of {rule.schema!r} failed on this event; the server's log says why"
