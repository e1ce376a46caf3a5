"""Says so when a model's rule does not return: the authority itself cannot, it is waiting for it."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from unisono.authority.loop import Authority

log = logging.getLogger("unisono.authority")

LOOK_EVERY_S: Final = 1.0

STUCK_AFTER_S: Final = 5.0
"""A hundred times the budget of a rule: it is not slow, it loops."""


class Watchdog(threading.Thread):
    """Looks at the authority from a thread of its own; it reads two attributes and changes nothing."""

    def __init__(self, authority: Authority, look_every_s: float = LOOK_EVERY_S) -> None:
        super().__init__(name="watchdog", daemon=True)
        self._authority = authority
        self._look_every_s = look_every_s
        self._done = threading.Event()

    def run(self) -> None:
        turn, still_s = -1, 0.0
        while not self._done.wait(self._look_every_s):
            rule = self._running_rule()
            if rule is None or self._authority.turns != turn:
                turn, still_s = self._authority.turns, 0.0
                continue
            still_s += self._look_every_s
            if still_s % STUCK_AFTER_S < self._look_every_s:
                log.critical(
                    "the rule %s has not returned for %.0f s; every commit waits for it", rule, still_s
                )

    def stop(self) -> None:
        self._done.set()
        self.join()

    def _running_rule(self) -> str | None:
        canonical = self._authority.states.model.canonical
        return None if canonical is None else canonical.running_rule
