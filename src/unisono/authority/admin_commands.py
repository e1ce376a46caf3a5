"""Admin commands to a running authority: reload the model, write a snapshot, maintain the log."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from unisono.authority.access_commands import AccessCommands
from unisono.authority.maintenance_commands import MaintenanceCommands
from unisono.authority.replica import Replica
from unisono.config import Settings
from unisono.ipc.messages import MAINTENANCE_COMMANDS, AdminCommand, CommandResult
from unisono.model.load import ModelError, load_model
from unisono.model.model import Model
from unisono.store.cluster import ModelRefused
from unisono.store.maintenance import MaintainedLog, MaintenanceRefused
from unisono.store.port import CommitLog
from unisono.vocabulary import JsonObject

logger = logging.getLogger("unisono.authority")


class CommandRefused(Exception):
    """The command cannot be executed; the text says why. Nothing has changed."""


class ReloadOptions(msgspec.Struct, frozen=True):
    """`dry_run`: only check whether the model can be loaded. `digest`: the content that was checked before."""

    dry_run: bool = False
    digest: str | None = None


class AdminCommands:
    """Executes admin commands between two groups."""

    def __init__(
        self, settings: Settings, log: MaintainedLog | None = None, store: CommitLog | None = None
    ) -> None:
        """`log`: the log if it is embedded, so that this process is its only writer. `store`: the log."""
        self._settings = settings
        self._maintenance = MaintenanceCommands(log)
        self._access = AccessCommands(store)

    def execute(self, replica: Replica, command: AdminCommand) -> CommandResult | None:
        """Execute a command or a step of it; None: not finished, call again after the next group."""
        try:
            match command.command:
                case "reload":
                    body = self._reload(replica, command.argument, _reload_options(command.body))
                case "snapshot":
                    snapshot = replica.states.write_snapshot(command.argument)
                    if snapshot is None:
                        return None
                    body = {
                        "partition": snapshot.partition,
                        "committed_id": snapshot.committed_id,
                        "model_version": snapshot.model_version,
                        "bytes": len(snapshot.state),
                    }
                case "access":
                    body = self._access.change(replica, command.body)
                case "revocations":
                    body = self._access.listed()
                case "clients":
                    body = self._access.clients(replica, int(command.argument))
                case "tell":
                    body = self._access.tell(replica, command.body)
                case "recent_groups":
                    body = {"groups": msgspec.to_builtins(replica.recent.groups(int(command.argument)))}
                case "refusals":
                    body = {"refusals": msgspec.to_builtins(replica.recent.refusals())}
                case name if name in MAINTENANCE_COMMANDS:
                    result = self._maintenance.execute(replica, command)
                    if result is None:
                        return None
                    body = result
                case name:
                    raise CommandRefused(f"unknown command {name!r}")
        except (CommandRefused, MaintenanceRefused, ModelError, ModelRefused) as error:
            logger.warning(
                "admin command %s refused: %s", command.command, error, extra={"command": command.command}
            )
            return CommandResult(command.ticket, False, msgspec.json.encode({"error": str(error)}))
        return CommandResult(command.ticket, True, msgspec.json.encode(body))

    def _reload(self, replica: Replica, directory: str, options: ReloadOptions) -> JsonObject:
        """MODEL-02: the new model is loaded and checked completely before anything switches."""
        old = replica.states.model
        path = directory or (self._settings.model or "")
        if old.version is None or path in ("", "open"):
            raise CommandRefused("this server runs without a versioned model; start it with --model DIR")
        new = load_model(Path(path), accept_init=self._settings.accept_init)
        if new.version is None or new.version <= old.version:
            edited = new.version == old.version and new.digest != old.digest
            also = f", which has another content (digest {old.digest[:12]}, this one {new.digest[:12]})"
            raise CommandRefused(
                f"model_version {new.version} is not above {old.version}, the one in force{also if edited else ''}; "
                "raise it in model.toml"
            )
        if options.digest is not None and new.digest != options.digest:
            raise CommandRefused("the files of the model have changed since they were checked; try again")
        if not options.dry_run:
            replica.cluster.publish(new)
            replica.adopt(replica.states.with_model(new))
            logger.info(
                "model %s: version %d replaced by %d",
                new.name,
                old.version,
                new.version,
                extra={"model_version": new.version},
            )
        return {
            "old_model_version": old.version,
            "new_model_version": new.version,
            "digest": new.digest,
            "changes": changes(old, new),
        }


def _reload_options(body: bytes) -> ReloadOptions:
    try:
        return msgspec.json.decode(body, type=ReloadOptions) if body else ReloadOptions()
    except msgspec.MsgspecError as error:
        raise CommandRefused(f"malformed body of reload: {error}") from None


def changes(old: Model, new: Model) -> JsonObject:
    """The differences between two models' descriptions, key by key, one level deep."""
    before, after = old.describe(), new.describe()
    return {
        key: {"before": before.get(key), "after": after.get(key)}
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    }
