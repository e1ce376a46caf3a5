"""Accounts whose balance does not go below zero."""

from __future__ import annotations

from typing import Any

from unisono.model.rules import Event, FieldError, Rules, refuse

rules = Rules()


@rules.check("entry.posted")
def covered(state: dict[str, Any], event: Event) -> list[FieldError]:
    if state.get(event.data["account"], 0) + event.data["amount"] < 0:
        return [refuse("amount", "the account has less than that")]
    return []


@rules.reduce("entry.posted")
def posted(state: dict[str, Any], event: Event) -> None:
    account = event.data["account"]
    state[account] = state.get(account, 0) + event.data["amount"]
