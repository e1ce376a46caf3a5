"""What an operator can order a running authority to do: take another model, write snapshots, keep the log."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from unisono.authority.maintenance_commands import KeepingOrders
from unisono.config import Settings
from unisono.ipc.messages import MAINTENANCE_COMMANDS, AdminCommand, CommandResult
from unisono.model.load import ModelError, load_model
from unisono.model.model import Model
from unisono.store.cluster import ModelRefused
from unisono.store.maintenance import MaintainedLog, MaintenanceRefused
from unisono.vocabulary import JsonObject

if TYPE_CHECKING:
    from unisono.authority.loop import Authority

log = logging.getLogger("unisono.authority")


class OrderRefused(Exception):
    """The order cannot be followed; the text says why and nothing has changed."""


class ReloadTerms(msgspec.Struct, frozen=True):
    """`dry_run`: only look whether the model could be taken. `digest`: take this content and no other."""

    dry_run: bool = False
    digest: str | None = None


class AdminCommands:
    """Carries out orders between two groups."""

    def __init__(self, settings: Settings, kept: MaintainedLog | None = None) -> None:
        """`kept`: the log, if it is embedded and this process its only writer."""
        self._settings = settings
        self._keeping = KeepingOrders(kept)

    def obey(self, authority: Authority, order: AdminCommand) -> CommandResult | None:
        """None: not done yet, ask again after the next group."""
        try:
            match order.command:
                case "reload":
                    body = self._reload(authority, order.argument, _reload_terms(order.body))
                case "snapshot":
                    snapshot = authority.states.write_snapshot(order.argument)
                    if snapshot is None:
                        return None
                    body = {
                        "partition": snapshot.partition,
                        "committed_id": snapshot.committed_id,
                        "model_version": snapshot.model_version,
                        "bytes": len(snapshot.state),
                    }
                case command if command in MAINTENANCE_COMMANDS:
                    kept = self._keeping.obey(authority, order)
                    if kept is None:
                        return None
                    body = kept
                case _:
                    raise OrderRefused(f"there is no order {order.command!r}")
        except (OrderRefused, MaintenanceRefused, ModelError, ModelRefused) as error:
            log.warning("order %s refused: %s", order.command, error)
            return CommandResult(order.ticket, False, msgspec.json.encode({"error": str(error)}))
        return CommandResult(order.ticket, True, msgspec.json.encode(body))

    def _reload(self, authority: Authority, directory: str, terms: ReloadTerms) -> JsonObject:
        """MODEL-02: the new model is loaded and checked whole before anything switches."""
        old = authority.states.model
        place = directory or (self._settings.model or "")
        if old.version is None or place in ("", "open"):
            raise OrderRefused("this server runs without a versioned model; start it with --model DIR")
        new = load_model(Path(place), accept_init=self._settings.accept_init)
        if new.version is None or new.version <= old.version:
            edited = new.version == old.version and new.digest != old.digest
            also = f", which has another content (digest {old.digest[:12]}, this one {new.digest[:12]})"
            raise OrderRefused(
                f"model_version {new.version} is not above {old.version}, the one in force{also if edited else ''}; "
                "raise it in model.toml"
            )
        if terms.digest is not None and new.digest != terms.digest:
            raise OrderRefused("the files of the model have changed since they were checked; try again")
        if not terms.dry_run:
            authority.neighbours.publish(new)
            authority.adopt(authority.states.renewed(new))
            log.info("model %s: version %d replaced by %d", new.name, old.version, new.version)
        return {
            "old_model_version": old.version,
            "new_model_version": new.version,
            "digest": new.digest,
            "changes": changes(old, new),
        }


def _reload_terms(body: bytes) -> ReloadTerms:
    try:
        return msgspec.json.decode(body, type=ReloadTerms) if body else ReloadTerms()
    except msgspec.MsgspecError as error:
        raise OrderRefused(f"an order to reload is not understood: {error}") from None


def changes(old: Model, new: Model) -> JsonObject:
    """What differs between two models' descriptions, key by key, one level deep."""
    before, after = old.describe(), new.describe()
    told: JsonObject = {}
    for key in sorted({*before, *after}):
        if before.get(key) != after.get(key):
            told[key] = {"before": before.get(key), "after": after.get(key)}
    return told
