"""How often rules were slow, failed or were stopped, for metrics."""

from __future__ import annotations

from collections.abc import Mapping

from unisono.model.model import Model


def rule_counts(model: Model, before: Mapping[str, int]) -> dict[str, int]:
    """Calls of such rules under this model and all `before` it: counters never decrease."""
    counts = dict(before)
    canonical = model.canonical
    if canonical is not None:
        kinds = {
            "slow": canonical.slow_rules,
            "failed": canonical.failed_rules,
            "stopped": canonical.stopped_rules,
        }
        for kind, rules in kinds.items():
            for rule, times in rules.items():
                name = f"rules_{kind}|{rule}"
                counts[name] = counts.get(name, 0) + times
    return counts
