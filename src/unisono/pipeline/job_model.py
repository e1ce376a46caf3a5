"""The model that a job folds with: chosen once by the driver, shipped to executors with its files."""

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
"""The name and digest of the open model, which accepts any event and reduces none."""

LOADED_MAX: Final = 4
"""Models cached in one process: a job has one, a comparison two."""

_loaded: OrderedDict[tuple[int, str], Model] = OrderedDict()


class ShippedModel(msgspec.Struct, frozen=True):
    """A model by its content; small and picklable. Without files it is the open model."""

    version: int
    digest: str
    files: dict[str, bytes] = {}

    @classmethod
    def open(cls) -> ShippedModel:
        return cls(NO_MODEL_VERSION, OPEN)

    @classmethod
    def of(cls, model: Model) -> ShippedModel:
        """A loaded model, ready to ship."""
        if model.version is None:
            return cls.open()
        return cls(model.version, model.digest, dict(model.files))

    @property
    def stored_digest(self) -> str:
        """The digest in a store's snapshots."""
        return stored_digest(self.digest)

    def load(self) -> Model:
        """The model, built once per process."""
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
    """The digest as stores have it: empty for the open model."""
    return "" if digest == OPEN else digest


def choose(directory: str | None, store: str | None) -> ShippedModel:
    """The model in a directory; without one, the model in force at the log `store`.

    `open` names the open model, which a log without a model also has.
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
        raise NoModel("no model given: --model DIR, --model open, or the log that has one (--data)")
    return in_force(store)


def in_force(store: str) -> ShippedModel:
    """The model in force at a log."""
    from unisono.pipeline.maintain.embedded import open_maintainer

    maintainer = open_maintainer(store)
    try:
        bundle = maintainer.model_in_force()
    finally:
        maintainer.close()
    if bundle is None:
        return ShippedModel.open()
    return ShippedModel(bundle.version, bundle.digest, dict(bundle.files))
