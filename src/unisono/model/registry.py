"""The JSON Schemas of a model: which names exist, and what is wrong with an event's data (VAL-02).

Schemas are JSON Schema 2020-12. A `$ref` reaches the other files of the model and nothing else; nothing is
ever fetched. `format` is checked, because an operator who writes one means it. What a client can make the
validator do is bounded: depth, number of errors, work spent on explaining them, backtracking in patterns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeAlias
from urllib.parse import quote, unquote, urldefrag, urljoin

import jsonschema_rs
import msgspec
import orjson

from unisono.display import shorten
from unisono.vocabulary import FieldError, Json, JsonObject

DATA = "event.payload.data"

DIALECT = "https://json-schema.org/draft/2020-12/schema"

ERRORS_MAX = 20
"""Errors reported for one event: enough to correct it, too few to make an answer large."""

FIELD_CHARS_MAX = 500
MESSAGE_CHARS_MAX = 300
"""Keys are the client's: an answer repeats no more of them than this."""

DATA_DEPTH_MAX = 256
"""The validator recurses natively; far deeper data than this would end the process."""

EXPLAINED_NODES_MAX = 2_000
"""Data with more values than this gets its first error only: the validator collects all or one."""

BACKTRACK_MAX = 100_000
"""Steps of a backtracking pattern on one string, about a millisecond; beyond, the string does not match."""

UNKNOWN_PROPERTY = "is not a property the schema knows"

Path: TypeAlias = tuple[str | int, ...]
Fault: TypeAlias = tuple[Path, str]

_BASE = "https://model.invalid/schemas/"
_META = jsonschema_rs.Draft202012Validator({"$ref": DIALECT}, offline=True)


class ModelProblem(msgspec.Struct, frozen=True, order=True):
    """One thing wrong with a model: the file, the place in it, and what to do about it."""

    file: str
    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}: {self.place}: {self.message}" if self.place else f"{self.file}: {self.message}"


class SchemaProblems(Exception):
    """The schemas cannot be used; `problems` says why, all of them."""

    def __init__(self, problems: Iterable[ModelProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class SchemaRegistry:
    """Every schema of a model, compiled.

    `documents` maps paths below `schemas/` to what the files hold. A file at the top is the schema of the
    events that bear its name; files in folders below serve only to be referred to.
    """

    def __init__(self, documents: Mapping[str, JsonObject]) -> None:
        self.documents = {
            path.removesuffix(".json"): document for path, document in documents.items() if "/" not in path
        }
        self._known = {_BASE + quote(path): document for path, document in documents.items()}
        for path, document in documents.items():
            if isinstance(own := document.get("$id"), str):
                self._known.setdefault(urldefrag(_join(_BASE + quote(path), own)).url, document)
        self._validators: dict[str, jsonschema_rs.Draft202012Validator] = {}
        problems: list[ModelProblem] = []
        for path, document in sorted(documents.items()):
            problems += self._compile(path, document)
        if problems:
            raise SchemaProblems(problems)
        branching = {"anyOf", "oneOf"}
        self._branching = any(key in branching for _, key, _ in _walk(list(documents.values())))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self.documents))

    def __contains__(self, name: object) -> bool:
        return name in self.documents

    def accepts(self, name: str, data: Json) -> bool:
        """Whether there is a schema of this name and `data` surely satisfies it; `errors` says the rest."""
        validator = self._validators.get(name)
        if validator is None:
            return False
        try:
            orjson.dumps(data)  # no deeper than DATA_DEPTH_MAX
        except (TypeError, ValueError, RecursionError):
            return False
        return validator.is_valid(data)

    def errors(self, name: str, data: Json) -> list[FieldError]:
        """What keeps `data` from satisfying the schema, in the order of the fields."""
        found = faults(self._validators[name], data, self._branching)
        return [FieldError(field_path(DATA, path), message) for path, message in found]

    def _compile(self, path: str, document: JsonObject) -> Iterator[ModelProblem]:
        file = f"schemas/{path}"
        if document.get("$schema", DIALECT) != DIALECT:
            yield ModelProblem(file, "$schema", f"only JSON Schema 2020-12 is understood; write {DIALECT!r}")
            return
        unfit = {
            ModelProblem(file, field_path("", error.instance_path), shorten(error.message, MESSAGE_CHARS_MAX))
            for error in _META.iter_errors(document)
        }
        if unfit:
            yield from sorted(unfit)
            return
        missing: list[str] = []

        def retrieve(uri: str) -> Any:
            if uri not in self._known:
                missing.append(uri)
                raise LookupError(uri)
            return self._known[uri]

        try:
            validator = jsonschema_rs.Draft202012Validator(
                document,
                retriever=retrieve,
                base_uri=_BASE + quote(path),
                mask="the value",
                validate_formats=True,
                ignore_unknown_formats=False,
                pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACK_MAX),
            )
        except jsonschema_rs.ValidationError as error:
            if not missing:
                message = error.message.removesuffix(" Adjust configuration to ignore unrecognized formats")
                yield ModelProblem(
                    file, field_path("", error.instance_path), shorten(message, MESSAGE_CHARS_MAX)
                )
                return
            yield from self._unresolved(file, path, document, missing)
        else:
            if "/" not in path:
                self._validators[path.removesuffix(".json")] = validator

    def _unresolved(
        self, file: str, path: str, document: JsonObject, missing: list[str]
    ) -> list[ModelProblem]:
        """The references of this file that lead out of the model; or else what another file misses."""
        own = document.get("$id")
        base = _join(_BASE + quote(path), own if isinstance(own, str) else "")
        says = "refers to {!r}, which is no file of this model; references are never fetched"
        here = [
            ModelProblem(file, field_path("", place), says.format(shorten(reference, MESSAGE_CHARS_MAX)))
            for place, key, reference in _walk(document)
            if key in {"$ref", "$dynamicRef"} and isinstance(reference, str) and not reference.startswith("#")
            if urldefrag(_join(base, reference)).url not in self._known
        ]
        return here or [
            ModelProblem(
                file, "", says.format(shorten(unquote(missing[0].removeprefix(_BASE)), MESSAGE_CHARS_MAX))
            )
        ]


def faults(validator: jsonschema_rs.Validator, data: Json, branching: bool = True) -> list[Fault]:
    """Where and why `data` fails a schema, in the order of the paths, at a bounded cost.

    `branching` says that the schema may hold `anyOf` or `oneOf`: each failed branch of those collects all its
    errors even when only the first is asked for, so large data is then not explained.
    """
    if _deeper(data, DATA_DEPTH_MAX):
        return [((), f"is nested more than {DATA_DEPTH_MAX} levels deep")]
    if validator.is_valid(data):
        return []
    if _fewer(data, EXPLAINED_NODES_MAX):
        found = list(validator.iter_errors(data))
    elif branching:
        return [((), "does not satisfy its schema, and is too large to say where")]
    else:
        found = _first(validator, data)
    explained = {fault for error in found for fault in _explain(error, data)}
    return sorted(explained, key=_sort_key)[:ERRORS_MAX]


def field_path(root: str, path: Iterable[str | int]) -> str:
    """`root` and the steps below it, joined with dots."""
    steps = [root, *map(str, path)] if root else map(str, path)
    return shorten(".".join(steps), FIELD_CHARS_MAX)


def _explain(error: jsonschema_rs.ValidationError, data: Json) -> list[Fault]:
    """Where an error is and what to do, pointing at the property that is missing or too many."""
    path, here = _exact(error, data)
    match error.kind:
        case jsonschema_rs.ValidationErrorKind.Required(property=missing):
            return [((*path, missing), "is required")]
        case (
            jsonschema_rs.ValidationErrorKind.AdditionalProperties(unexpected=keys)
            | jsonschema_rs.ValidationErrorKind.UnevaluatedProperties(unexpected=keys)
        ):
            return [((*path, key), UNKNOWN_PROPERTY) for key in keys]
        case jsonschema_rs.ValidationErrorKind.PropertyNames(error=inner):
            return [
                (
                    (*path, str(inner.instance)),
                    shorten(f"is no name for a property: {inner.message}", MESSAGE_CHARS_MAX),
                )
            ]
        case jsonschema_rs.ValidationErrorKind.FalseSchema():
            if list(error.schema_path)[-1:] == ["additionalProperties"] and isinstance(here, dict):
                return [((*path, key), UNKNOWN_PROPERTY) for key in here]
            return [(path, "the schema allows no value here")]
    return [(path, shorten(error.message, MESSAGE_CHARS_MAX))]


def _exact(error: jsonschema_rs.ValidationError, data: Json) -> tuple[Path, Json]:
    """The path of an error in the data's own words, and what is there.

    The validator reports keys that look like numbers as numbers ("007" as 7) and leaves empty keys out.
    """
    path: list[str | int] = []
    here: Any = data
    for step in error.instance_path:
        while (key := _fitting(here, step)) is None:
            if not isinstance(here, dict) or "" not in here:
                return tuple(error.instance_path), None
            path.append("")
            here = here[""]
        path.append(key)
        here = here[key]
    while isinstance(here, dict) and "" in here and error.instance != here:
        path.append("")
        here = here[""]
    return tuple(path), here


def _fitting(container: Any, step: str | int) -> str | int | None:
    if isinstance(container, list):
        return step if isinstance(step, int) and step < len(container) else None
    if not isinstance(container, dict) or (key := str(step)) in container:
        return str(step) if isinstance(container, dict) else None
    return next((own for own in container if own.removeprefix("+").lstrip("0") == key.lstrip("0")), None)


def _first(validator: jsonschema_rs.Validator, data: Json) -> list[jsonschema_rs.ValidationError]:
    try:
        validator.validate(data)
    except jsonschema_rs.ValidationError as error:
        return [error]
    return []


def _sort_key(fault: Fault) -> tuple[tuple[tuple[bool, int, str], ...], str]:
    """Indexes by number, keys by text."""
    path, message = fault
    return tuple((True, 0, step) if isinstance(step, str) else (False, step, "") for step in path), message


def _walk(root: Json) -> Iterator[tuple[Path, str, Json]]:
    """Every (path, key, value) of the objects below `root`, in order."""
    waiting: list[tuple[Path, Json]] = [((), root)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, dict):
            for key, part in value.items():
                yield (*path, key), key, part
            waiting.extend(((*path, key), part) for key, part in reversed(value.items()))
        elif isinstance(value, list):
            waiting.extend(((*path, index), part) for index, part in reversed(list(enumerate(value))))


def _deeper(data: Json, levels: int) -> bool:
    try:
        orjson.dumps(data)
    except (TypeError, ValueError, RecursionError):
        level = [data]  # the encoder stops at 254 levels
    else:
        return False
    for _ in range(levels + 1):
        level = [
            part
            for container in level
            if isinstance(container, (dict, list))
            for part in (container.values() if isinstance(container, dict) else container)
            if isinstance(part, (dict, list))
        ]
        if not level:
            return False
    return True


def _fewer(data: Json, nodes: int) -> bool:
    """Whether the data holds fewer values than `nodes`; looks at no more than that."""
    waiting = [data]
    seen = 0
    while waiting and seen < nodes:
        value = waiting.pop()
        seen += 1
        if isinstance(value, (dict, list)):
            waiting.extend(islice(value.values() if isinstance(value, dict) else value, nodes))
    return seen < nodes


def _join(base: str, reference: str) -> str:
    try:
        return urljoin(base, reference)
    except ValueError:
        return reference
