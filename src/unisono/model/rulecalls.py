"""Calling an operator's rules: each is timed, none can end the process, and what goes wrong is counted.

This is the one place of the model that looks at a clock, and only to tell the operator that a rule is slow:
no judgement depends on it.
"""

from __future__ import annotations

import logging
from itertools import islice
from time import perf_counter
from typing import Any

from unisono.model.journal import Journal, TrackedDict, plain
from unisono.model.registry import ERRORS_MAX
from unisono.model.rules import SCHEMA_FIELD, Event, Rule, RuleFailed, Rules
from unisono.vocabulary import FieldError, JsonObject

RULE_BUDGET_MS = 50.0
"""How long one rule may take before it is called slow: commits of everyone wait for it."""

LOG_INTERVAL_S = 10.0
"""One line per rule and kind of trouble in this time; the line tells how many were left out."""

log = logging.getLogger("unisono.model")


class RuleCalls:
    """Runs the rules of one model against states, and keeps count per rule label.

    `running` names the rule being called, so that a watcher can tell which rule does not return. `quiet`: what goes
    wrong is counted and not logged.
    """

    def __init__(self, rules: Rules, budget_ms: float = RULE_BUDGET_MS) -> None:
        self.rules = rules
        self.budget_ms = budget_ms
        self.slow: dict[str, int] = {}
        self.failed: dict[str, int] = {}
        self.running: str | None = None
        self.quiet = False
        self._logged: dict[tuple[str, str], tuple[float, int]] = {}

    def refusals(self, state: TrackedDict, journal: Journal, payload: JsonObject) -> list[FieldError]:
        """What the checks of the payload's schema say; the state is left as it was."""
        found: list[FieldError] = []
        for rule in self.rules.checks(_schema(payload)):
            mark = journal.mark()
            try:
                found += self._timed(rule, state, payload)
            except (Exception, SystemExit):
                self._failure(rule)
                found.append(FieldError(SCHEMA_FIELD, _says("check", rule)))
            if journal.mark() != mark:
                journal.rollback(mark)
                self._report(rule, "meddling", "the check %s changed the state; undone", exc_info=False)
        return found[:ERRORS_MAX]

    def reduce(self, state: TrackedDict, journal: Journal, payload: JsonObject) -> None:
        """Let the schema's reducer change the state; `RuleFailed`, and no change, when it cannot."""
        rule = self.rules.reducer(_schema(payload))
        if rule is None:
            return
        mark = journal.mark()
        try:
            returned = self._timed(rule, state, payload)
            if returned is not None:
                raise TypeError("a reducer changes the state in place and returns nothing")
        except (Exception, SystemExit) as error:
            journal.rollback(mark)
            self._failure(rule)
            raise RuleFailed(_says("reducer", rule)) from error

    def _timed(self, rule: Rule, state: TrackedDict, payload: JsonObject) -> Any:
        event = _event(payload)
        self.running = rule.label
        started = perf_counter()
        try:
            returned = rule.function(state, event)
            return _complaints(returned) if rule.kind == "check" else returned
        finally:
            took_ms = (perf_counter() - started) * 1000
            self.running = None
            if took_ms > self.budget_ms:
                self.slow[rule.label] = self.slow.get(rule.label, 0) + 1
                says = f"the rule %s took {took_ms:.0f} ms; its budget is {self.budget_ms:g} ms"
                self._report(rule, "slow", says, exc_info=False)

    def _failure(self, rule: Rule) -> None:
        self.failed[rule.label] = self.failed.get(rule.label, 0) + 1
        self._report(rule, "failed", "the rule %s failed; its event is refused", exc_info=True)

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


def _event(payload: JsonObject) -> Event:
    """The payload as a rule sees it: a copy, so that no rule can change what others see."""
    copy: Any = plain(payload)
    return Event(copy["schema"], copy["data"], copy.get("meta") or {})


def _schema(payload: JsonObject) -> str:
    schema = payload["schema"]
    assert isinstance(schema, str), "the shape was checked before"
    return schema


def _complaints(returned: Any) -> list[FieldError]:
    found = [] if returned is None else list(islice(returned, ERRORS_MAX))
    for each in found:
        if not isinstance(each, FieldError):
            raise TypeError(f"a check gives FieldErrors, not {type(each).__name__!r}; see refuse()")
    return found


def _says(kind: str, rule: Rule) -> str:
    return f"the {kind} {rule.name!r} of {rule.schema!r} failed on this event; the server's log says why"
