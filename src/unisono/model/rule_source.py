"""What can be said of rules without calling them: wrong arguments, uses of what is not stored with an event, and
calls that give another answer each time.

Arguments are looked at when a model is loaded, since no call of such a rule can succeed. What looks nondeterministic
is a hint for the author: the source is read and not run, so a call may be harmless, and one that is hidden is not
seen.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Collection, Iterator
from typing import Final

import msgspec

from unisono.model.rules import Event, Rule

ARGUMENTS: Final = ("state", "event")
RULE_KINDS: Final = ("check", "reduce")
EVENT_FIELDS: Final = Event.__struct_fields__

CLOCK: Final = "reads the clock"
CHANCE: Final = "is random"
PLACE: Final = "depends on the machine it runs on"
OUTSIDE: Final = "reaches outside the state and the event"
SEED: Final = "differs from process to process"

MODULES: Final = {
    "time": CLOCK,
    "random": CHANCE,
    "secrets": CHANCE,
    "os": PLACE,
    "platform": PLACE,
    "locale": PLACE,
    "getpass": PLACE,
    "tempfile": OUTSIDE,
    "pathlib": OUTSIDE,
    "glob": OUTSIDE,
    "shutil": OUTSIDE,
    "subprocess": OUTSIDE,
    "socket": OUTSIDE,
    "urllib.request": OUTSIDE,
    "http.client": OUTSIDE,
    "requests": OUTSIDE,
    "httpx": OUTSIDE,
    "aiohttp": OUTSIDE,
    "sqlite3": OUTSIDE,
}
"""Modules of which no call has a place in a rule."""

HARMLESS: Final = frozenset({"time.strptime", "os.path.basename", "os.path.join", "pathlib.PurePosixPath"})

CALLS: Final = {
    "datetime.datetime.now": CLOCK,
    "datetime.datetime.utcnow": CLOCK,
    "datetime.datetime.today": CLOCK,
    "datetime.date.today": CLOCK,
    "uuid.uuid1": CHANCE,
    "uuid.uuid4": CHANCE,
    "open": OUTSIDE,
    "input": OUTSIDE,
    "hash": SEED,
    "id": SEED,
}

UNORDERED: Final = "goes through a set, whose order differs from process to process; sort it"
REMEMBERS: Final = "remembers something outside the state"


class SignatureFault(msgspec.Struct, frozen=True):
    """Why a function cannot serve as a rule: where it is, and how it is to be written."""

    place: str
    message: str


def signature_fault(rule: Rule) -> SignatureFault | None:
    """What is wrong with the arguments of a rule, or with what kind of function it is."""
    wrong = _wrong_arguments(rule)
    kind = {"check": "check", "undo": "undo"}.get(rule.kind, "reducer")
    if wrong is None and kind == "reducer" and inspect.isgeneratorfunction(rule.function):
        wrong = "yields, and a reducer changes the state in place and gives nothing"
    if wrong is None:
        return None
    code = getattr(rule.function, "__code__", None)
    place = rule.name if code is None else f"line {code.co_firstlineno}, {rule.name}"
    return SignatureFault(place, f"{wrong}; a {kind} is written def {rule.name}(state, event)")


def _wrong_arguments(rule: Rule) -> str | None:
    try:
        signature = inspect.signature(rule.function, follow_wrapped=False)
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(None, None)
    except TypeError:
        return f"takes {signature}"
    names = tuple(signature.parameters)
    if names[:2] == ARGUMENTS[::-1]:
        return f"takes {signature}, in the wrong order"
    return None


def unstored_uses(source: bytes, claims: Collection[str]) -> list[tuple[str, str]]:
    """Where rules use something of an event that is not stored with it: a field there is not, or a claim that
    `model.toml` does not ask for. Claims named by a variable are not seen; there they are simply missing."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []  # loading the module has said so
    found: set[tuple[int, str]] = set()
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for name in _event_arguments(function):
                for node in ast.walk(function):
                    says = _unstored(node, name, claims)
                    if says is not None:
                        found.add((getattr(node, "lineno", function.lineno), says))
    return [(f"line {line}", says) for line, says in sorted(found)]


def _event_arguments(function: ast.FunctionDef) -> set[str]:
    """The names by which a function knows an event: `event`, and the second argument of a rule."""
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    is_rule = any(
        isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr in RULE_KINDS
        for each in function.decorator_list
    )
    return {name for name in names if name == ARGUMENTS[1]} | (set(names[1:2]) if is_rule else set())


def _unstored(node: ast.AST, event: str, claims: Collection[str]) -> str | None:
    if _is_field(node, event) and isinstance(node, ast.Attribute) and node.attr not in EVENT_FIELDS:
        return f"{event}.{node.attr}: an event has {', '.join(EVENT_FIELDS)}"
    claim: ast.AST | None = None
    if isinstance(node, ast.Subscript) and _is_field(node.value, event, "claims"):
        claim = node.slice
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "get"
        and _is_field(node.func.value, event, "claims")
        and node.args
    ):
        claim = node.args[0]
    if isinstance(claim, ast.Constant) and claim.value not in claims:
        return f"the claim {claim.value!r} is not stored with events: name it in `claims` of model.toml"
    return None


def _is_field(node: ast.AST, event: str, field: str | None = None) -> bool:
    """Whether a node is `event.field`, or any field of it."""
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == event
        and field in (None, node.attr)
    )


def hints(source: bytes) -> list[str]:
    """Calls in the source of rules that make them nondeterministic, as `line 12: time.time() reads the clock`."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []  # loading the module has said so
    names = dict(_imported(tree))
    found: set[tuple[int, str]] = set()
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.Lambda)):
            for node in ast.walk(function):
                says = _hint(node, names)
                if says is not None:
                    at = node.iter if isinstance(node, ast.comprehension) else node
                    found.add((getattr(at, "lineno", function.lineno), says))
    return [f"line {line}: {says}" for line, says in sorted(found)]


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """The names a module knows other modules by, and parts of them, with their full names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (
                    alias.asname or alias.name.partition(".")[0],
                    (alias.name if alias.asname else alias.name.partition(".")[0]),
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _hint(node: ast.AST, names: dict[str, str]) -> str | None:
    if isinstance(node, (ast.Global, ast.Nonlocal)):
        return f"{' and '.join(node.names)}: {REMEMBERS}"
    if isinstance(node, (ast.For, ast.comprehension)) and _is_set(node.iter):
        return UNORDERED
    if isinstance(node, ast.Attribute) and _full_name(node, names) == "os.environ":
        return f"os.environ {PLACE}"
    if not isinstance(node, ast.Call):
        return None
    called = _full_name(node.func, names)
    if called in ("list", "tuple", "enumerate", "next", "iter") and node.args and _is_set(node.args[0]):
        return UNORDERED
    why = _why(called)
    return None if why is None else f"{called}() {why}"


def _why(called: str | None) -> str | None:
    if called is None or called in HARMLESS:
        return None
    if called in CALLS:
        return CALLS[called]
    return next((why for module, why in MODULES.items() if called.startswith(f"{module}.")), None)


def _is_set(node: ast.expr) -> bool:
    if isinstance(node, (ast.Set, ast.SetComp)):
        return True
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("set", "frozenset")
    )


def _full_name(node: ast.expr, names: dict[str, str]) -> str | None:
    """The dotted name of what an expression names, through the imports; None when it is no plain name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    first = names.get(node.id)
    if first is None:
        return node.id if not parts else None
    return ".".join([first, *reversed(parts)])
