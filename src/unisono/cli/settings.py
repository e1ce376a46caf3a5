"""Loads the settings of a server from a TOML file, the environment and the command line.

A setting is a key of the file, an environment variable (`UNISONO_` and the name in capitals), or an option of
`unisono serve` (dashes for underscores). The environment overrides the file, and the command line overrides both. An
unknown name or a value out of bounds is a ConfigError that names it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from unisono.cli.setting_fields import FIELDS, allowed_values, is_list, is_table, type_of
from unisono.cli.suggestions import did_you_mean
from unisono.config import Settings

ENVIRONMENT_PREFIX = "UNISONO_"

NOT_SETTINGS = frozenset({"config", "token", "cache_dir", "traceback"})
"""Variables with that prefix that are no settings: the path of the TOML file, the token of `tail` and `submit`, and
what the `lake` commands read from the environment."""

OLD_NAMES: Final[Mapping[str, str]] = {
    "archive_cache_bytes_max": "max_archive_cache_bytes",
    "connections_max": "max_connections",
    "json_depth_max": "max_json_depth",
    "queue_bytes_max": "max_queue_bytes",
    "queue_events_max": "max_queue_events",
    "send_buffer_bytes_max": "max_send_buffer_bytes",
    "states_bytes_max": "max_states_bytes",
    "sync_page_bytes_max": "max_sync_page_bytes",
    "sync_queue_bytes_max": "max_sync_queue_bytes",
    "sync_queue_max": "max_queued_syncs",
    "sync_snapshot_bytes_max": "max_sync_snapshot_bytes",
}
"""Renamed settings, old → new. An old name is a RenamedSetting error: neither accepted nor ignored."""


URL_PASSWORD: Final = re.compile(r"(?<=:)[^:/?#]+(?=@)|(?<=password=)[^&]+")
"""The password of a database URL, before its host or in its query."""

SECRET_OPTION: Final = re.compile(r"secret|token|passw|credential|key|sas", re.IGNORECASE)
"""Names of archive options whose values are secrets."""


class ConfigError(Exception):
    """A setting is unknown, of the wrong type, or out of bounds; the text names it and the place it was given in."""


class RenamedSetting(ConfigError):
    """A setting was given by a name of OLD_NAMES; the text names the new one."""


def load(
    file: Path | None,
    environment: Mapping[str, str],
    options: Mapping[str, Any],
    defaults: Mapping[str, Any] | None = None,
) -> Settings:
    """The settings from all three places; `options` has only what was given on the command line.

    `defaults` replace the defaults of `Settings`; any of the three places overrides them.
    """
    values: dict[str, Any] = dict(defaults or {})
    faults: list[ConfigError] = []
    for name, value, where, strict in _given(file, environment, options):
        try:
            _check_name(name, str(file) if strict else where)
            values[name] = _checked(name, value, where, strict=strict)
        except ConfigError as fault:
            faults.append(fault)
    if faults:
        raise _all_of(faults)
    try:
        return Settings(**values)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _given(
    file: Path | None, environment: Mapping[str, str], options: Mapping[str, Any]
) -> Iterator[tuple[str, Any, str, bool]]:
    """Each setting as it was given: its name, its value, where, and whether the value has its own type there."""
    if file is not None:
        for name, value in _read(file).items():
            yield name, value, f"{file}: {name}", True
    for key, text in environment.items():
        name = key.removeprefix(ENVIRONMENT_PREFIX).lower()
        if key.startswith(ENVIRONMENT_PREFIX) and name not in NOT_SETTINGS:
            yield name, text, f"environment variable {key}", False
    for name, value in options.items():
        yield name, value, f"option --{name.replace('_', '-')}", False


def _all_of(faults: Sequence[ConfigError]) -> ConfigError:
    if len(faults) == 1:
        return faults[0]
    text = "\n".join([f"{len(faults)} settings are wrong:", *(f"  {fault}" for fault in faults)])
    renamed = all(isinstance(fault, RenamedSetting) for fault in faults)
    return RenamedSetting(text) if renamed else ConfigError(text)


def secrets_of(settings: Settings) -> Iterator[str]:
    """The secrets among the settings, as they were written and as they are read, for logs to hide."""
    if settings.store is not None:
        for password in URL_PASSWORD.findall(settings.store):
            yield from {password, unquote(password)}
    for name, value in (settings.archive_options or {}).items():
        if SECRET_OPTION.search(name):
            yield value


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not TOML: {error}") from None


def _check_name(name: str, where: str) -> None:
    if name in OLD_NAMES:
        raise RenamedSetting(f"{where}: the setting {name!r} was renamed to {OLD_NAMES[name]!r}")
    if name not in FIELDS:
        raise ConfigError(f"{where}: there is no setting {name!r}{did_you_mean(name, FIELDS)}")


def _split(name: str, value: Any, where: str) -> Any:
    """Where only text can be given, lists are separated by commas and tables are key=value pairs between commas."""
    if not isinstance(value, str) or not (is_list(name) or is_table(name)):
        return value
    parts = [part.strip() for part in value.split(",") if part.strip()]
    if not is_table(name):
        return parts
    pairs = [part.partition("=") for part in parts]
    for number, (key, equals, _) in enumerate(pairs, 1):
        if not key or not equals:  # the value may be a secret: it is not shown
            raise ConfigError(f"{where}: part {number} of it is not key=value")
    return {key: rest for key, _, rest in pairs}


def _checked(name: str, value: Any, where: str, *, strict: bool) -> Any:
    hint = type_of(name)
    if not strict:
        value = _split(name, value, where)
    try:
        return msgspec.convert(value, hint, strict=strict)
    except msgspec.ValidationError as error:
        allowed = allowed_values(name)
        among = f" (allowed: {', '.join(allowed)})" if allowed else ""
        raise ConfigError(f"{where}: {error}{among}") from None
