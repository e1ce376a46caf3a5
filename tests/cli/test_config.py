"""One table of settings, three places to give them: TOML file, environment, command line."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click
import pytest
from click.testing import Result

from tests.commands import unisono
from unisono.cli.serve import serve
from unisono.cli.setting_fields import FIELDS, is_flag, is_list, is_table, section_and_help
from unisono.cli.settings import OLD_NAMES, ConfigError, RenamedSetting, load
from unisono.config import Settings

NAMES = list(FIELDS)
HINTS = get_type_hints(Settings)


def plain(name: str) -> Any:
    """The type of a setting, without the None that means unset."""
    parts = [part for part in get_args(HINTS[name]) if part is not type(None)]
    return parts[0] if type(None) in get_args(HINTS[name]) else HINTS[name]


def choices(name: str) -> tuple[str, ...]:
    """The words a setting is limited to; empty when it is not."""
    kind = get_args(plain(name))[0] if is_list(name) else plain(name)
    return get_args(kind) if get_origin(kind) is Literal else ()


def another(name: str) -> Any:
    """A value that is allowed and is not the default."""
    default = FIELDS[name].default
    if is_flag(name):
        return not default
    if name == "jwt_algorithms":
        return ("HS256", "ES256")
    if name == "allowed_origins":
        return ("https://app.example.com", "http://localhost:5173")
    if name == "otel_endpoint":
        return "http://127.0.0.1:4318"
    if name == "store":
        return "postgresql://db.example/log"
    if is_table(name):
        return {"some.key": "some=thing", "other": ""}
    if is_list(name):
        return tuple(reversed(choices(name)))
    if choices(name):
        return next(choice for choice in choices(name) if choice != default)
    if plain(name) is float:
        return default + 0.5
    if plain(name) is int:
        return default + 1
    return "some/thing"


def wrong(name: str) -> list[Any]:
    """Values that are not allowed, as TOML has them."""
    if is_flag(name):
        return ["perhaps", 2]
    if is_table(name):
        return ["sideways", 5, {"key": 5}]
    if is_list(name):
        return [[1], 5, *([["sideways"]] if choices(name) else [])]
    if choices(name):
        return ["sideways", 5]
    if plain(name) in (int, float):
        return ["many", -1, 10**18, True]
    return [5, ["a"]]


def as_text(value: Any) -> str:
    """As an environment variable or an option has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return ",".join(f"{key}={rest}" for key, rest in value.items())
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def toml(path: Path, **values: Any) -> Path:
    path.write_text("".join(f"{name} = {_toml(value)}\n" for name, value in values.items()))
    return path


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {json.dumps(rest)}" for key, rest in value.items()) + "}"
    return json.dumps(value)


def from_options(*arguments: str) -> dict[str, Any]:
    """What `unisono serve` makes of its command line."""
    with serve.make_context("serve", list(arguments)) as context:
        return {name: value for name, value in context.params.items() if name in FIELDS and value is not None}


def option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def changed(settings: Settings) -> dict[str, Any]:
    return {
        name: getattr(settings, name) for name in NAMES if getattr(settings, name) != FIELDS[name].default
    }


@pytest.fixture
def root_logger() -> Iterator[None]:
    """`serve` takes over the root logger; give it back."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def run_serve(*arguments: str, env: Mapping[str, str] | None = None) -> Result:
    return unisono("serve", *arguments, env=env)


@pytest.mark.parametrize("name", NAMES)
def test_every_option_is_also_a_toml_key_and_an_environment_variable(name: str, tmp_path: Path) -> None:
    value = another(name)
    wanted = {name: value}
    assert changed(load(toml(tmp_path / "unisono.toml", **wanted), {}, {})) == wanted
    assert changed(load(None, {f"UNISONO_{name.upper()}": as_text(value)}, {})) == wanted
    if is_flag(name):
        arguments = [option(name) if value else f"--no-{option(name)[2:]}"]
    else:
        arguments = [option(name), as_text(value)]
    assert changed(load(None, {}, from_options(*arguments))) == wanted


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_is_in_the_help_with_its_section_and_default(name: str) -> None:
    section, text = section_and_help(name)
    shown = " ".join(run_serve("--help").output.split())
    assert f"{section}:" in shown
    assert option(name) in shown
    assert text in shown


def test_there_is_no_option_that_is_not_a_setting() -> None:
    names = {parameter.name for parameter in serve.params}
    assert names - set(NAMES) == {"dev", "config"}


def test_nothing_given_is_the_defaults() -> None:
    assert changed(load(None, {}, {})) == {}
    assert changed(load(None, {"PATH": "/bin", "unisono_port": "1"}, from_options())) == {}


@pytest.mark.parametrize(
    ("name", "in_file", "in_environment", "as_option"),
    [
        ("port", 1, "2", "3"),
        ("heartbeat_timeout_s", 1.5, "2.5", "3.5"),
        ("data", "a", "b", "c"),
        ("profiles", ["canonical"], "compatibility,canonical", "compatibility"),
    ],
)
def test_the_command_line_wins_over_the_environment_and_that_over_the_file(
    name: str, in_file: Any, in_environment: str, as_option: str, tmp_path: Path
) -> None:
    file = toml(tmp_path / "unisono.toml", **{name: in_file}, fronts=7)
    environment = {f"UNISONO_{name.upper()}": in_environment}
    options = from_options(option(name), as_option)
    assert as_text(getattr(load(file, {}, {}), name)) == as_text(in_file)
    assert as_text(getattr(load(file, environment, {}), name)) == in_environment
    assert as_text(getattr(load(file, environment, options), name)) == as_option
    assert as_text(getattr(load(file, {}, options), name)) == as_option
    assert load(file, environment, options).fronts == 7, "what only the file says holds"


def test_a_flag_can_be_turned_off_again(tmp_path: Path) -> None:
    file = toml(tmp_path / "unisono.toml", sync_subscribes=True)
    assert load(file, {}, {}).sync_subscribes
    assert not load(file, {"UNISONO_SYNC_SUBSCRIBES": "false"}, {}).sync_subscribes
    assert load(file, {"UNISONO_SYNC_SUBSCRIBES": "0"}, from_options("--sync-subscribes")).sync_subscribes
    assert not load(file, {}, from_options("--no-sync-subscribes")).sync_subscribes


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_value_is_named_wherever_it_stands(name: str, tmp_path: Path) -> None:
    for value in wrong(name):
        file = toml(tmp_path / "unisono.toml", **{name: value})
        with pytest.raises(ConfigError) as refused:
            load(file, {}, {})
        assert str(refused.value).startswith(f"{file}: {name}: "), refused.value
    if plain(name) is str or name in ("jwt_algorithms", "allowed_origins"):
        return  # any text will do here; what it names is looked at when it is used, or with all settings together
    text = as_text(wrong(name)[0]) if not is_list(name) else "sideways"
    with pytest.raises(ConfigError) as refused:
        load(None, {f"UNISONO_{name.upper()}": text}, {})
    assert str(refused.value).startswith(f"environment variable UNISONO_{name.upper()}: ")
    if is_flag(name):
        with pytest.raises(click.UsageError, match=option(name)):
            from_options(f"{option(name)}=perhaps")
    else:
        with pytest.raises(ConfigError) as refused:
            load(None, {}, from_options(option(name), text))
        assert str(refused.value).startswith(f"option {option(name)}: ")


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("name", [name for name in NAMES if plain(name) is float])
def test_no_number_is_without_bounds(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name.upper()):
        load(None, {f"UNISONO_{name.upper()}": value}, {})


def test_all_faults_are_named_at_once_with_what_is_allowed(tmp_path: Path) -> None:
    file = toml(tmp_path / "unisono.toml", prot=1, log_level="loud")
    with pytest.raises(ConfigError) as refused:
        load(file, {"UNISONO_PORT": "x", "UNISONO_ZZZ": "1"}, from_options("--profiles", "tree"))
    assert str(refused.value).splitlines() == [
        "5 settings are wrong:",
        f"  {file}: there is no setting 'prot'; did you mean 'port' or 'fronts'?",
        f"  {file}: log_level: Invalid enum value 'loud' (allowed: debug, info, warning, error)",
        "  environment variable UNISONO_PORT: Expected `int`, got `str`",
        "  environment variable UNISONO_ZZZ: there is no setting 'zzz'",
        "  option --profiles: Invalid enum value 'tree' - at `$[0]` (allowed: canonical, compatibility)",
    ]


def test_an_unknown_name_is_an_error_that_names_it(tmp_path: Path) -> None:
    file = toml(tmp_path / "unisono.toml", prot=1)
    with pytest.raises(ConfigError, match=f"{file}: there is no setting 'prot'"):
        load(file, {}, {})
    with pytest.raises(ConfigError, match="UNISONO_PROT: there is no setting 'prot'"):
        load(None, {"UNISONO_PROT": "1"}, {})
    refused = run_serve("--prot", "1")
    assert refused.exit_code == 2
    assert "No such option" in refused.output
    assert "--prot" in refused.output


def test_every_old_name_has_a_setting_that_replaces_it() -> None:
    assert set(OLD_NAMES.values()) <= set(NAMES)
    assert not set(OLD_NAMES) & set(NAMES)
    assert [
        name for name in NAMES if name.endswith(("_max", "_min")) and not name.startswith("sync_limit_")
    ] == []


@pytest.mark.parametrize(("old", "new"), OLD_NAMES.items())
def test_an_old_name_is_an_error_that_names_the_new_one(old: str, new: str, tmp_path: Path) -> None:
    """Neither accepted nor ignored, at any of the three places; nothing is started or written."""
    file = toml(tmp_path / "unisono.toml", **{old: FIELDS[new].default})
    environment = {f"UNISONO_{old.upper()}": str(FIELDS[new].default)}
    with pytest.raises(RenamedSetting, match=f"unisono.toml: the setting '{old}' was renamed to '{new}'"):
        load(file, {}, {})
    with pytest.raises(RenamedSetting, match=f"{old.upper()}: the setting '{old}' was renamed to '{new}'"):
        load(None, environment, {})
    data = ("--dev", "--data", str(tmp_path / "data"))
    for refused, said in (
        (run_serve(*data, "--config", str(file)), f"the setting '{old}' was renamed to '{new}'"),
        (run_serve(*data, env=environment), f"the setting '{old}' was renamed to '{new}'"),
        (run_serve(*data, option(old), "1"), f"option {option(old)} was renamed to {option(new)}"),
        (run_serve(*data, f"{option(old)}=1"), f"option {option(old)} was renamed to {option(new)}"),
    ):
        assert refused.exit_code == 2, refused.output
        assert said in refused.output
    assert not (tmp_path / "data").exists()


def test_an_error_in_options_that_may_be_secret_does_not_show_them(tmp_path: Path) -> None:
    for file, environment in (
        (None, {"UNISONO_ARCHIVE_OPTIONS": "aws_region=x,hunter2"}),
        (None, {"UNISONO_ARCHIVE_OPTIONS": "=hunter2"}),
        (toml(tmp_path / "unisono.toml", archive_options="aws_secret_access_key=hunter2"), {}),
    ):
        with pytest.raises(ConfigError, match=r"(?i)archive_options") as refused:
            load(file, environment, {})
        assert "hunter2" not in str(refused.value)


def test_variables_of_other_commands_are_no_settings() -> None:
    """Who has exported a token for `tail` can start a server in the same terminal."""
    others = {"UNISONO_TOKEN": "eyJ", "UNISONO_CONFIG": "unisono.toml"}
    others |= {"UNISONO_CACHE_DIR": "/var/cache/unisono", "UNISONO_TRACEBACK": "1"}
    assert changed(load(None, others, {})) == {}


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("port = = 1")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    for file, words in ((tmp_path / "none.toml", "cannot be read"), (broken, "TOML"), (binary, "TOML")):
        for refused in (run_serve("--config", str(file)), run_serve(env={"UNISONO_CONFIG": str(file)})):
            assert refused.exit_code == 2
            assert str(file) in refused.output
            assert words in refused.output


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"sync_limit_min": "60", "sync_limit_max": "55"}, "sync_limit_min is above sync_limit_max"),
        ({"profiles": ""}, "profiles names none"),
        ({"jwks": "a", "jwt_secret_file": "b"}, "give one of jwt_secret_file, jwt_public_key and jwks"),
    ],
)
def test_settings_that_contradict_each_other_are_named(values: dict[str, str], words: str) -> None:
    refused = run_serve(env={f"UNISONO_{name.upper()}": value for name, value in values.items()})
    assert refused.exit_code == 2
    assert words in refused.output


@pytest.mark.usefixtures("root_logger")
def test_what_a_setting_points_to_is_checked_at_once(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a secret of at least thirty-two bytes")
    short = tmp_path / "short"
    short.write_text("too short")
    acl = tmp_path / "acl.toml"
    acl.write_text("everybody = 1")
    nowhere = str(tmp_path / "nowhere")
    key = ("--jwt-secret-file", str(secret))
    cases: list[tuple[tuple[str, ...], str]] = [
        ((), "give --jwt-secret-file, --jwt-public-key or --jwks"),
        (("--jwt-secret-file", nowhere), nowhere),
        (("--jwt-secret-file", str(short)), str(short)),
        (("--jwt-public-key", str(secret)), str(secret)),
        (("--jwks", str(secret)), str(secret)),
        ((*key, "--jwt-algorithms", "none"), "none"),
        ((*key, "--jwt-algorithms", "HS1024"), "HS1024"),
        ((*key, "--acl", str(acl)), "everybody"),
        ((*key, "--model", nowhere), nowhere),
        ((*key, "--profiles", "canonical"), "canonical needs a model"),
        ((*key, "--host", "no.such.host.invalid", "--port", "0"), "no.such.host.invalid"),
    ]
    for arguments, words in cases:
        refused = run_serve("--data", str(tmp_path / "data"), *arguments)
        assert refused.exit_code == (1 if "--host" in arguments else 2), (arguments, refused.output)
        assert refused.output.count("Error: ") == 1, (arguments, refused.output)
        assert words in refused.output, (arguments, refused.output)
        assert isinstance(refused.exception, SystemExit)
    assert not (tmp_path / "data").exists()

    assert load(None, {}, {"rule_timeout_s": 30}).rule_timeout_s == 30
