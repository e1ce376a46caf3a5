"""A board on which people have roles.

The roles are events of the board itself, so that they are judged in the same order as everything else and are part of
its history. The state of a partition grows to this:

    {"members": {"ann": "owner", "ben": "editor"},
     "cards": {"c1": {"list": "todo", "text": "milk", "by": "ann", "name": "Ann", "at": 1794700000000}}}

`event.user_id` is the person whose token the server has verified; nobody can write another one into an event.
"""

from __future__ import annotations

from typing import Any

from unisono.model.rules import Event, FieldError, Rules, refuse

rules = Rules()

MAY_WRITE = ("owner", "editor")


def role_of(state: dict[str, Any], user_id: str | None) -> str | None:
    return state.get("members", {}).get(user_id) if user_id is not None else None


def is_last_owner(state: dict[str, Any], user_id: str) -> bool:
    owners = [name for name, role in state.get("members", {}).items() if role == "owner"]
    return owners == [user_id]


@rules.check("member.set", "member.removed")
def owners_name_members(state: dict[str, Any], event: Event) -> list[FieldError]:
    if not state.get("members"):
        first = {"user_id": event.user_id, "role": "owner"}
        return (
            [] if event.data == first else [refuse("", "the first member of a board is its owner, by itself")]
        )
    if role_of(state, event.user_id) != "owner":
        return [refuse("", "only an owner may change the members")]
    if event.data.get("role") != "owner" and is_last_owner(state, event.data["user_id"]):
        return [refuse("user_id", "a board keeps at least one owner")]
    return []


@rules.check("member.removed")
def member_exists(state: dict[str, Any], event: Event) -> list[FieldError]:
    known = event.data["user_id"] in state.get("members", {})
    return [] if known else [refuse("user_id", "is no member of this board")]


@rules.check("card.added", "card.edited", "card.moved", "card.removed")
def writers_write(state: dict[str, Any], event: Event) -> list[FieldError]:
    role = role_of(state, event.user_id)
    if role in MAY_WRITE:
        return []
    return [refuse("", f"a {role} may not change cards" if role else "only members may change cards")]


@rules.check("card.added")
def card_is_new(state: dict[str, Any], event: Event) -> list[FieldError]:
    return (
        [refuse("id", "there is already such a card")] if event.data["id"] in state.get("cards", {}) else []
    )


@rules.check("card.edited", "card.moved", "card.removed")
def card_exists(state: dict[str, Any], event: Event) -> list[FieldError]:
    return [] if event.data["id"] in state.get("cards", {}) else [refuse("id", "there is no such card")]


@rules.check("card.edited", "card.removed")
def authors_edit(state: dict[str, Any], event: Event) -> list[FieldError]:
    card = state.get("cards", {}).get(event.data["id"])
    if card is None or card["by"] == event.user_id or role_of(state, event.user_id) == "owner":
        return []
    return [refuse("id", "only its author and owners may do this to a card")]


@rules.reduce("member.set")
def set_member(state: dict[str, Any], event: Event) -> None:
    state.setdefault("members", {})[event.data["user_id"]] = event.data["role"]


@rules.reduce("member.removed")
def remove_member(state: dict[str, Any], event: Event) -> None:
    del state["members"][event.data["user_id"]]


@rules.reduce("card.added")
def add_card(state: dict[str, Any], event: Event) -> None:
    state.setdefault("cards", {})[event.data["id"]] = {
        "list": event.data["list"],
        "text": event.data["text"],
        "by": event.user_id,
        "name": event.claims.get("name", event.user_id),
        "at": event.committed_at,
    }


@rules.reduce("card.edited")
def edit_card(state: dict[str, Any], event: Event) -> None:
    state["cards"][event.data["id"]]["text"] = event.data["text"]


@rules.reduce("card.moved")
def move_card(state: dict[str, Any], event: Event) -> None:
    state["cards"][event.data["id"]]["list"] = event.data["list"]


@rules.reduce("card.removed")
def remove_card(state: dict[str, Any], event: Event) -> None:
    del state["cards"][event.data["id"]]
