"""The compatibility profile: tree actions under the policy `strict`.

A state is one JSON object. A tree is an object `{items: {id: {…}}, tree: [{id, children: […]}]}`, perhaps
with other keys beside these, and it is known by that shape alone: any object that a target can name and that
holds `items` as an object and `tree` as an array is a tree, however it came there (`treePush`, `set`, `init`)
and wherever it is (deep in a path, within an item of another tree). Nothing else is remembered of it, so a
state that was dumped and loaded judges as before. An array is data as a whole: no target leads into it.

A tree is well formed when its nodes are objects of `id` and `children` and nothing else, each id is a
non-empty string other than `_root` and comes once, `items` has exactly those ids, and each item is an object
without `id`. Only in the value of an `init`, which may bring a state of another system, may an item of any tree
carry its key as its `id`: the event keeps it, the state does not (TREE-03).

**Writes around trees.** `set`, `unset`, `init`, and the values of `treePush` and `treeUpdate`, keep to two
rules, or the event is refused on `event.payload.target` or at the place in `event.payload.value`:

1. After the write, every tree is well formed.
2. A tree is replaced or removed whole, or it stays a tree: no write at or below it takes its `items` or
   `tree` away or turns them into something else.

So with a tree at `explorer`: `set explorer.items.A.name`, `set explorer.items.A {…}`, `set explorer {color}`,
`unset explorer` and `set explorer` with `replace` are fine; so is `set explorer.tree` with `replace`, if it
names the same ids in another order. Refused are `set explorer.items.NEW`, `unset explorer.items.A`,
`unset explorer.tree`, `set explorer.items.A.id` and `set explorer {tree: "oak"}`.

Where the rules for tree actions are silent, strict means refusing: a path does not lead through a value that
is no object, an object with one of `items` and `tree` but not a tree takes no `treePush`, and a node is not
placed beside itself.
"""

from __future__ import annotations

from typing import assert_never

from unisono.display import shorten
from unisono.model.forest import ROOT, Forest, Malformed
from unisono.model.policy import TreePolicy
from unisono.model.tree_actions import (
    ACTIONS,
    Action,
    Init,
    Position,
    Set,
    TreeDelete,
    TreeMove,
    TreePush,
    TreeUpdate,
    Unset,
    read,
)
from unisono.model.tree_state import Object, TreeState, is_tree, parts
from unisono.model.tree_writes import EventValue, MergedWrite, fault, field_error, landing, role
from unisono.vocabulary import FieldError, Json, JsonObject

__all__ = ["TreeProfile", "TreeState"]

TARGET = "event.payload.target"
OPTIONS = "event.payload.options"


class TreeProfile:
    """How tree actions are judged and what they do (VAL-04, TREE-11).

    `shape` keeps what it read of the last event, so that judging and applying the same object, in one
    partition or in several, need not read it again: an event is not to be changed after its `shape` was asked,
    and the states it was applied to hold parts of it from then on.
    """

    name = "compatibility"

    def __init__(self, policy: TreePolicy | None = None, *, accept_init: bool = True) -> None:
        self._policy = policy
        takes_init = accept_init and (policy is None or policy.init)
        self.accepted_event_types = tuple(kind for kind in ACTIONS if kind != "init" or takes_init)
        self._last: tuple[JsonObject, Action, EventValue] | None = None

    def shape(self, event: JsonObject) -> list[FieldError]:
        action = read(event, self.accepted_event_types)
        if isinstance(action, list):
            self._last = None
            return action
        self._last = (event, action, _brought(action))
        if self._policy is None or isinstance(action, Init):
            return []
        return self._policy.complaints(event, action.target)

    def refusals(self, state: TreeState, event: JsonObject) -> list[FieldError]:
        action, brought = self._action(event)
        match action:
            case Set():
                return _refuse_write(_set(state, action), action.target, brought)
            case Unset():
                return _refuse_unset(state, action)
            case Init():
                return _refuse_init(brought)
            case TreePush():
                return _refuse_push(state, _tree(state, action.target), action, brought)
            case TreeDelete() | TreeUpdate() | TreeMove():
                return _refuse_existing(state, _tree(state, action.target), action, brought)
        assert_never(action)

    def apply(self, state: TreeState, event: JsonObject) -> None:
        action, brought = self._action(event)
        match action:
            case Set():
                _write(state, _set(state, action), brought)
            case Unset():
                holder = _holder(state, action)
                if holder is not None:
                    state.drop(holder, action.target[-1])
            case Init():
                state.restart(*brought.root())
            case TreePush() | TreeDelete() | TreeUpdate() | TreeMove():
                _change_tree(state, _tree(state, action.target), action, brought)
            case _:
                assert_never(action)

    def replay(self, state: TreeState, event: JsonObject) -> list[FieldError]:
        """Apply an event of the log, if nothing speaks against it: `shape`, `refusals` and `apply` in one."""
        if errors := self.shape(event):
            return errors
        action, brought = self._action(event)
        if isinstance(action, Set | Unset | Init):
            if errors := self.refusals(state, event):
                return errors
            self.apply(state, event)
            return []
        tree = _tree(state, action.target)
        if isinstance(action, TreePush):
            errors = _refuse_push(state, tree, action, brought)
        else:
            errors = _refuse_existing(state, tree, action, brought)
        if not errors:
            _change_tree(state, tree, action, brought)
        return errors

    def empty(self) -> TreeState:
        return TreeState()

    def load(self, dumped: Json) -> TreeState:
        """The state that `dump` gave; raises Malformed, naming the fault, when it cannot be one."""
        if not isinstance(dumped, dict):
            raise Malformed((), "a tree state is a JSON object")
        try:
            return TreeState(dumped)
        except Malformed as malformed:
            place = ".".join(malformed.path)
            raise Malformed(malformed.path, f"malformed tree at {place}: {malformed.message}") from None

    def _action(self, event: JsonObject) -> tuple[Action, EventValue]:
        last = self._last
        if last is None or last[0] is not event:
            action = read(event)
            assert not isinstance(action, list), "refusals and apply follow shape"
            last = self._last = (event, action, _brought(action))
        return last[1:]


def _brought(action: Action) -> EventValue:
    match action:
        case Set(value=value) | Init(value=value):
            return EventValue(value)
        case TreePush(data=data) | TreeUpdate(data=data):
            return EventValue(data)
    return EventValue(None)


def _named(target: tuple[str, ...]) -> str:
    """A target as a message may quote it, however long it is."""
    return repr(shorten(".".join(target), 100))


def _tree(state: TreeState, target: tuple[str, ...]) -> Object | None:
    objects = state.trail(target)
    return objects[-1] if len(objects) > len(target) and is_tree(objects[-1]) else None


def _change_tree(
    state: TreeState,
    tree: Object | None,
    action: TreePush | TreeDelete | TreeUpdate | TreeMove,
    brought: EventValue,
) -> None:
    """Apply an action on a tree; `tree` is the one at its target."""
    if tree is None:
        assert isinstance(action, TreePush), "apply follows refusals"
        _write(state, _first_push(state, action), brought)
        return
    match action:
        case TreePush():
            before = _before(parts(tree)[1], action.parent, action.position)
            state.plant(tree, action.id, brought.value(), action.parent, before)
        case TreeDelete():
            state.prune(tree, action.id)
        case TreeUpdate():
            _write(state, _update(state, tree, action), brought)
        case TreeMove():
            forest = parts(tree)[1]
            before = _before(forest, action.parent, action.position)
            if before == action.id:
                before = forest.nodes[action.id].after
            state.move(tree, action.id, action.parent, before)


def _write(state: TreeState, write: MergedWrite | None, brought: EventValue) -> None:
    assert write is not None, "apply follows refusals"
    state.merge(write.holder, write.adopted(brought))


def _set(state: TreeState, action: Set) -> MergedWrite | None:
    return landing(state, action.target, action.value, merge=not action.replace)


def _update(state: TreeState, tree: Object, action: TreeUpdate) -> MergedWrite:
    items, _ = parts(tree)
    if action.replace:
        return MergedWrite(items, "items", {action.id: action.data}, (action.id,))
    return MergedWrite(state.open(items, action.id), "item", action.data, ())


def _first_push(state: TreeState, action: TreePush) -> MergedWrite | None:
    """The push that makes a tree of its target, as the write of a tree of one item (TREE-13)."""
    tree: JsonObject = {"items": {action.id: action.data}, "tree": [{"id": action.id, "children": []}]}
    return landing(state, action.target, tree, merge=True, path=("items", action.id))


def _holder(state: TreeState, action: Unset) -> Object | None:
    """The object an `unset` takes a key from; None when there is nothing to take."""
    objects = state.trail(action.target[:-1])
    there = len(objects) == len(action.target) and action.target[-1] in objects[-1]
    return objects[-1] if there else None


def _before(forest: Forest, parent: str, position: Position) -> str | None:
    """The sibling a position stands before; None for the end."""
    match position.side:
        case "first":
            return forest.nodes[parent].first
        case "last":
            return None
        case "after":
            return forest.nodes[position.sibling].after
        case "before":
            return position.sibling


def _refuse_write(
    write: MergedWrite | None, target: tuple[str, ...], brought: EventValue
) -> list[FieldError]:
    if write is None:
        return [FieldError(TARGET, f"{_named(target)} leads through a value that is not an object")]
    wrong = fault(write, brought)
    return [] if wrong is None else [wrong]


def _refuse_unset(state: TreeState, action: Unset) -> list[FieldError]:
    holder = _holder(state, action)
    if holder is None:
        return []
    objects = state.trail(action.target[:-1])
    if role(objects, action.target) == "items":
        return [FieldError(TARGET, "an item of a tree is removed by treeDelete")]
    if is_tree(holder) and action.target[-1] in ("items", "tree"):
        return [FieldError(TARGET, "a tree is removed whole or keeps its `items` and `tree`")]
    return []


def _refuse_init(brought: EventValue) -> list[FieldError]:
    try:
        brought.root()
    except Malformed as malformed:
        return [field_error(malformed, 0)]
    return []


def _refuse_push(
    state: TreeState, tree: Object | None, action: TreePush, brought: EventValue
) -> list[FieldError]:
    if tree is None:
        return _refuse_first_push(state, action, brought)
    items, forest = parts(tree)
    errors = []
    if action.id in items:
        errors.append(FieldError("event.payload.value.id", "this id is already in the tree"))
    errors += _refuse_place(forest, action.parent, action.position)
    try:
        brought.value()
    except Malformed as malformed:
        errors.append(field_error(malformed, 0))
    return errors


def _refuse_first_push(state: TreeState, action: TreePush, brought: EventValue) -> list[FieldError]:
    objects = state.trail(action.target)
    if len(objects) > len(action.target):
        if "items" in objects[-1] or "tree" in objects[-1]:
            return [FieldError(TARGET, f"{_named(action.target)} holds `items` or `tree` and is not a tree")]
    elif action.target[len(objects) - 1] in objects[-1]:
        return [
            FieldError(TARGET, f"{_named(action.target)} is, or leads through, a value that is not an object")
        ]
    errors = _refuse_place(Forest(), action.parent, action.position)
    return errors or _refuse_write(_first_push(state, action), action.target, brought)


def _refuse_existing(
    state: TreeState, tree: Object | None, action: TreeDelete | TreeUpdate | TreeMove, brought: EventValue
) -> list[FieldError]:
    """Refusals of an action on an item that must be there."""
    if tree is None:
        return [FieldError(TARGET, f"there is no tree at {_named(action.target)}")]
    items, forest = parts(tree)
    known = action.id in items
    errors = [] if known else [FieldError(f"{OPTIONS}.id", "there is no item of this id")]
    if isinstance(action, TreeMove):
        errors += _refuse_place(forest, action.parent, action.position, action.id if known else None)
    elif isinstance(action, TreeUpdate) and known:
        errors += _refuse_write(_update(state, tree, action), action.target, brought)
    return errors


def _refuse_place(
    forest: Forest, parent: str, position: Position, moving: str | None = None
) -> list[FieldError]:
    if parent != ROOT and parent not in forest:
        return [FieldError(f"{OPTIONS}.parent", "there is no item of this id")]
    if moving is not None and forest.holds(moving, parent):
        return [FieldError(f"{OPTIONS}.parent", "a node cannot be moved into itself or below itself")]
    if position.side in ("after", "before"):
        field = f"{OPTIONS}.position.{position.side}"
        if position.sibling == moving:
            return [FieldError(field, "a node cannot be placed beside itself")]
        if position.sibling not in forest or forest.nodes[position.sibling].parent != parent:
            return [FieldError(field, "there is no such item among the children of the chosen parent")]
    return []
