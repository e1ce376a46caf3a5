"""The model that a job folds with: chosen once by the driver, shipped to executors by its files."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Final

import msgspec

from unisono.model.load import ModelError, load_files, load_model, open_model
from unisono.model.model import Model
from unisono.pipeline.errors import NoModel
from unisono.store.maintenance import NO_MODEL_VERSION

OPEN: Final = "open"
"""The name, and the digest, of the model that takes anything and reduces nothing."""

LOADED_MAX: Final = 4
"""Models kept in one process: a job has one, a comparison two."""

_loaded: OrderedDict[tuple[int, str], Model] = OrderedDict()


class ShippedModel(msgspec.Struct, frozen=True):
    """A model by its content; small and picklable. Without files it is the open one."""

    version: int
    digest: str
    files: dict[str, bytes] = {}

    @classmethod
    def open(cls) -> ShippedModel:
        return cls(NO_MODEL_VERSION, OPEN)

    @classmethod
    def of(cls, model: Model) -> ShippedModel:
        """A loaded model, to be sent elsewhere."""
        if model.version is None:
            return cls.open()
        return cls(model.version, model.digest, dict(model.files))

    @property
    def stored_digest(self) -> str:
        """The digest under which a store keeps its snapshots."""
        return stored_digest(self.digest)

    def load(self) -> Model:
        """The model itself, built once per process."""
        key = (self.version, self.digest)
        model = _loaded.get(key)
        if model is None:
            model = _loaded[key] = load_files(self.files) if self.files else open_model()
            if model.canonical is not None:
                model.canonical.silence()  # what fails in replay is counted in `skipped`
            if len(_loaded) > LOADED_MAX:
                _loaded.popitem(last=False)
        return model


def stored_digest(digest: str) -> str:
    """A store names the open model by no digest at all."""
    return "" if digest == OPEN else digest


def choose(directory: str | None, store: str | None) -> ShippedModel:
    """The model in a directory; or, when none is named, the one in force where the log `store` is written.

    `open` names the open model, which is also that of a log without a model.
    """
    if directory == OPEN:
        return ShippedModel.open()
    if directory is not None:
        try:
            return ShippedModel.of(load_model(Path(directory)))
        except ModelError as error:
            head, *faults = (line.strip() for line in str(error).splitlines())
            raise NoModel(f"{head} {'; '.join(faults)}".rstrip()) from error
    if store is None:
        raise NoModel(
            "say which model to fold with: --model DIR, --model open, or the log that has one (--data)"
        )
    return in_force(store)


def in_force(store: str) -> ShippedModel:
    """The model that the authority of this log judges by."""
    from unisono.pipeline.maintain.embedded import open_maintainer

    maintainer = open_maintainer(store)
    try:
        bundle = maintainer.model_in_force()
    finally:
        maintainer.close()
    if bundle is None:
        return ShippedModel.open()
    return ShippedModel(bundle.version, bundle.digest, dict(bundle.files))
