"""A model directory → `Model`, checked completely before anyone uses it.

    model.toml        name = "tasks", model_version = 3, and optionally
                      reducers = "reducers.json", rules = "rules.py", rule_budget_ms = 50, tree = "tree.toml",
                      claims = ["role"]: claims of tokens that are stored with events, for rules
    schemas/*.json    JSON Schema 2020-12; `task.created.json` is the schema of events named `task.created`
    schemas/*/*.json  pieces for the schemas to refer to: {"$ref": "pieces/id.json"}
    reducers.json     what events do, as data; see `unisono.model.declared`
    rules.py          a Python module with `rules = Rules()`; see `unisono.model.rules`
    tree.toml         which tree targets there are; see `unisono.model.policy`

Loading reads each file once: what is digested is what is used. The Python module is one file and imports
nothing from the model directory. It gets a name of its own at each load, so that a reload sees new code and
the model loaded before keeps its own.
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import json
import sys
import tempfile
import tomllib
import traceback
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import msgspec

from unisono.model.declared import DeclaredReducers, undo_schemas
from unisono.model.model import Model, no_model, open_model
from unisono.model.policy import PolicyError, TreePolicy
from unisono.model.registry import ModelProblem, SchemaProblems, SchemaRegistry
from unisono.model.rule_calls import RULE_BUDGET_MS
from unisono.model.rule_source import signature_fault, unstored_uses
from unisono.model.rules import Rules
from unisono.model.schema import SchemaProfile
from unisono.model.tree import TreeProfile
from unisono.vocabulary import JsonObject

__all__ = ["MANIFEST", "Model", "ModelError", "ModelProblem", "load_model", "no_model", "open_model"]

MANIFEST = "model.toml"
MANIFEST_KEYS = ("name", "model_version", "reducers", "rules", "rule_budget_ms", "tree", "claims")
CLAIMS_MAX = 16
"""Claims that a model can ask for: they are stored with each event."""
VERSION_LIMIT = 2**53

_loads = itertools.count(1)


class ModelError(Exception):
    """A model that cannot be used; `problems` lists everything found, by file and place."""

    def __init__(self, path: Path, problems: list[ModelProblem]) -> None:
        self.path = path
        self.problems = tuple(problems)
        listed = "\n".join(f"  {problem}" for problem in problems)
        super().__init__(f"the model in {path} cannot be used:\n{listed}")


class ModelManifest(msgspec.Struct, frozen=True):
    """What `model.toml` says."""

    name: str = ""
    model_version: int = 0
    reducers: str | None = None
    rules: str | None = None
    rule_budget_ms: float = RULE_BUDGET_MS
    tree: str | None = None
    claims: list[str] = []


def load_model(path: Path, *, accept_init: bool = True) -> Model:
    """The model in a directory; `ModelError` with all its problems when it cannot be used."""
    if not path.is_dir():
        raise ModelError(path, [ModelProblem(str(path), "", "is not a directory")])
    reading = _Reading(path)
    manifest = reading.manifest()
    registry = reading.registry()
    rules = reading.rules(manifest.rules) if manifest.rules else Rules()
    policy = reading.policy(manifest.tree) if manifest.tree else None
    if registry is not None:
        reading.check_rules(manifest.rules or "", rules, registry)
    if manifest.reducers:
        reading.declare(manifest.reducers, rules, registry)
    if manifest.rules:
        reading.check_authorship(manifest.rules, manifest.claims)
    if reading.problems:
        raise ModelError(path, reading.problems)
    return Model(
        name=manifest.name,
        version=manifest.model_version,
        canonical=SchemaProfile(registry, rules, manifest.rule_budget_ms),
        compatibility=TreeProfile(policy, accept_init=accept_init),
        policy=policy,
        path=path,
        digest=reading.digest(),
        files=reading.files,
        claims=tuple(manifest.claims),
    )


def load_files(files: Mapping[str, bytes], *, accept_init: bool = True) -> Model:
    """A model from its content, as `Model.files` has it: how it travels to other machines."""
    with tempfile.TemporaryDirectory(prefix="unisono-model-") as folder:
        for name, content in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return load_model(Path(folder), accept_init=accept_init)


class _Reading:
    """One pass over a model directory: gathers problems instead of stopping at the first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[ModelProblem] = []
        self.files: dict[str, bytes] = {}

    def digest(self) -> str:
        """SHA-256 over the names and contents of all files that were read."""
        total = hashlib.sha256()
        for name, content in sorted(self.files.items()):
            total.update(f"{len(name.encode())} {name} {len(content)} ".encode())
            total.update(content)
        return total.hexdigest()

    def manifest(self) -> ModelManifest:
        table = self._toml(MANIFEST)
        if table is None:
            return ModelManifest()
        for key in table:
            if key not in MANIFEST_KEYS:
                self._problem(MANIFEST, key, f"unknown key; known are {', '.join(MANIFEST_KEYS)}")
        for key, says in _manifest_faults(table):
            self._problem(MANIFEST, key, says)
            table.pop(key, None)
        return ModelManifest(**{key: table[key] for key in MANIFEST_KEYS if key in table})

    def registry(self) -> SchemaRegistry | None:
        folder = self.path / "schemas"
        documents: dict[str, JsonObject] = {}
        for file in sorted(folder.rglob("*.json")):
            document = self._json(file.relative_to(self.path).as_posix())
            if document is not None:
                documents[file.relative_to(folder).as_posix()] = document
        try:
            return SchemaRegistry(documents)
        except SchemaProblems as found:
            self.problems += found.problems
            return None

    def rules(self, name: str) -> Rules:
        source = self._read(name)
        if source is None:
            return Rules()
        file = self.path / name
        try:
            module = _import(file, source)
        except (Exception, SystemExit) as error:
            self._problem(name, _line(error, file), f"{type(error).__name__}: {_first_line(error)}")
            return Rules()
        rules = getattr(module, "rules", None)
        if not isinstance(rules, Rules):
            self._problem(name, "", "has no `rules = Rules()` (from unisono.model.rules import Rules)")
            return Rules()
        return rules

    def check_rules(self, name: str, rules: Rules, registry: SchemaRegistry) -> None:
        reported: set[tuple[str, str]] = set()
        for schema in rules.schemas:
            for rule in rules.functions(schema):
                if schema not in registry and f"schemas/{schema}.json" not in self.files:
                    says = f"is for {schema!r}, which has no file schemas/{schema}.json"
                    self._problem(name, rule.name, says)
                wrong = signature_fault(rule)
                if wrong is not None and (wrong.place, wrong.message) not in reported:
                    reported.add((wrong.place, wrong.message))
                    self._problem(name, wrong.place, wrong.message)

    def declare(self, name: str, rules: Rules, registry: SchemaRegistry | None) -> None:
        """Add the declarative reducers to the rules."""
        document = self._json(name, "declarative reducers are an object of schemas")
        if document is None:
            return
        declared = DeclaredReducers(document)
        for place, message in declared.faults:
            self._problem(name, place, message)
        for place, schema in undo_schemas(document):
            if registry is not None and schema not in registry:
                self._problem(name, place, f"{schema!r} has no file schemas/{schema}.json")
        for rule in declared.rules:
            if registry is not None and rule.schema not in registry:
                self._problem(name, rule.schema, f"has no file schemas/{rule.schema}.json")
                continue
            try:
                rules.add(rule)
            except ValueError as error:
                self._problem(name, rule.schema, str(error))

    def check_authorship(self, name: str, claims: list[str]) -> None:
        """A rule that uses what is not stored would see something else in a replay."""
        for place, says in unstored_uses(self.files.get(name, b""), claims):
            self._problem(name, place, says)

    def policy(self, name: str) -> TreePolicy | None:
        table = self._toml(name)
        if table is None:
            return None
        try:
            return TreePolicy.parse(table, name)
        except PolicyError as error:
            self._problem(name, "", str(error).removeprefix(f"{name}: "))
            return None

    def _problem(self, file: str, place: str, message: str) -> None:
        self.problems.append(ModelProblem(file, place, message))

    def _read(self, name: str) -> bytes | None:
        file = self.path / name
        if not file.resolve().is_relative_to(self.path.resolve()):
            self._problem(name, "", "is outside the model's directory")
            return None
        try:
            content = file.read_bytes()
        except OSError as error:
            self._problem(name, "", f"cannot be read: {error.strerror or error}")
            return None
        self.files[name] = content
        return content

    def _text(self, name: str) -> str | None:
        content = self._read(name)
        if content is None:
            return None
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            self._problem(name, f"byte {error.start}", "is not UTF-8")
            return None

    def _toml(self, name: str) -> dict[str, Any] | None:
        text = self._text(name)
        if text is None:
            return None
        try:
            return tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            self._problem(name, "", f"is not TOML: {error}")
            return None

    def _json(self, name: str, otherwise: str = "a schema is an object") -> JsonObject | None:
        text = self._text(name)
        if text is None:
            return None
        try:
            document = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
        except json.JSONDecodeError as error:
            self._problem(name, f"line {error.lineno}, column {error.colno}", f"is not JSON: {error.msg}")
            return None
        except RecursionError:
            self._problem(name, "", "is nested too deep")
            return None
        except ValueError as error:
            self._problem(name, "", f"is not JSON: {error}")
            return None
        if not isinstance(document, dict):
            self._problem(name, "", otherwise)
            return None
        return document


def _manifest_faults(table: dict[str, Any]) -> list[tuple[str, str]]:
    faults = []
    name, version = table.get("name"), table.get("model_version")
    if not isinstance(name, str) or not name:
        faults.append(("name", "a model has a name: a non-empty string"))
    if type(version) is not int or not 0 < version < VERSION_LIMIT:
        faults.append(("model_version", "a model has a version: an integer from 1, below 2**53"))
    faults += [
        (key, "must be the name of a file in the model's directory")
        for key in ("reducers", "rules", "tree")
        if key in table and (not isinstance(table[key], str) or not table[key])
    ]
    claims = table.get("claims", [])
    if not isinstance(claims, list) or not all(isinstance(claim, str) and claim for claim in claims):
        faults.append(("claims", "must be an array of names of claims"))
    elif len(claims) > CLAIMS_MAX or len(set(claims)) < len(claims):
        faults.append(("claims", f"must name at most {CLAIMS_MAX} claims, each once"))
    budget = table.get("rule_budget_ms", 1)
    if type(budget) not in (int, float) or not 0 < budget < float("inf"):
        faults.append(("rule_budget_ms", "must be a number of milliseconds above 0"))
    return faults


class _OnceRead(SourceFileLoader):
    """Loads the source that was read, past any bytecode cache: two edits in one second are two versions."""

    def __init__(self, fullname: str, path: str, source: bytes) -> None:
        super().__init__(fullname, path)
        self._source = source

    def path_stats(self, _path: Any) -> Any:
        raise OSError("not cached")

    def get_data(self, _path: Any) -> bytes:
        return self._source


def _import(file: Path, source: bytes) -> object:
    name = f"unisono_model_{next(_loads)}"
    spec = importlib.util.spec_from_loader(name, _OnceRead(name, str(file), source))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and Structs of the module look it up by name
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _line(error: BaseException, file: Path) -> str:
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    return next((f"line {frame.lineno}" for frame in reversed(frames) if frame.filename == str(file)), "")


def _first_line(error: BaseException) -> str:
    return (error.msg if isinstance(error, SyntaxError) else str(error)).partition("\n")[0]


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} comes twice")
    return document


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")
