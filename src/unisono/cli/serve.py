"""`unisono serve`: load and check the settings, then run a node."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec
from aiohttp.web import Application

from unisono.cli import logs
from unisono.cli.setting_fields import FIELDS, is_flag, is_list, section_and_help
from unisono.cli.settings import OLD_NAMES, ConfigError, RenamedSetting, load, secrets_of
from unisono.cli.store_option import EXIT_UNUSABLE, needing_driver
from unisono.config import Settings
from unisono.console.links import console_link
from unisono.console.site import ConsoleSite
from unisono.demo.site import DemoSite, reachable_url
from unisono.front.access import Access, Acl, AclError
from unisono.front.auth.keys import KeySourceError, read_secret
from unisono.front.auth.sources import JwksFile, JwksUrl, KeySource, PemPublicKey, SharedSecret
from unisono.front.auth.verify import Verifier, sign_token
from unisono.model.load import ModelError, load_model
from unisono.model.model import Model, no_model, open_model
from unisono.node.admin import AdminHost
from unisono.node.start import serve as run_node
from unisono.node.supervisor import AdminSite
from unisono.samples import sample_model

log = logging.getLogger("unisono.serve")

DEV_SECRET_FILE = "dev-secret"  # noqa: S105
DEV_TOKEN_TTL_S = 30 * 86_400
DEV_CLIENTS = ("alice", "bob")
DEV_PARTITION = "welcome"


class CannotStart(click.ClickException):
    """Another start with the same settings ends the same way; for supervisors, which then do not try one."""

    exit_code = EXIT_UNUSABLE


class ServeCommand(click.Command):
    """Prints help with one block per section of the settings page, and names the new option for an old one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            old_name = error.option_name.removeprefix("--").replace("-", "_")
            if old_name not in OLD_NAMES:
                raise
            raise click.UsageError(
                f"option {error.option_name} was renamed to {_option_name(OLD_NAMES[old_name])}", ctx
            ) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        blocks: dict[str, list[tuple[str, str]]] = {"Start": []}
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            if row is None:
                continue
            name = parameter.name or ""
            section = section_and_help(name)[0] if name in FIELDS else "Start"
            blocks.setdefault(section, []).append(row)
        for section, rows in blocks.items():
            with formatter.section(section):
                formatter.write_dl(rows)


def _option_name(setting: str) -> str:
    return f"--{setting.replace('_', '-')}"


def _option(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    _, text = section_and_help(name)
    default = FIELDS[name].default
    default_text = ",".join(default) if is_list(name) and default is not None else default
    if is_flag(name):
        return click.option(
            f"{_option_name(name)}/--no-{name.replace('_', '-')}",
            name,
            default=None,
            help=f"{text} [default: {'on' if default else 'off'}]",
        )
    note = "" if default_text is None else f" [default: {default_text}]"
    return click.option(_option_name(name), name, metavar="VALUE", help=text + note)


@click.command(cls=ServeCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--dev", is_flag=True, help="Try things out: sample model, both profiles, own secret, access allow."
)
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="UNISONO_CONFIG",
    help="TOML file with any of the settings below (underscores for dashes).",
)
def serve(dev: bool, config: Path | None, **options: Any) -> None:
    """Run a sync server on the embedded log.

    Every option below is also a TOML key (underscores for dashes) and an environment variable (UNISONO_ and
    capitals: UNISONO_PORT). The command line wins over the environment, and that over the file.

    \b
    A server for real use:
      unisono serve --data /var/lib/unisono --jwt-public-key issuer.pem --model ./model --fronts 2
    A server to try things out, with tokens and a command to paste:
      unisono serve --dev

    SIGTERM and SIGINT: finish what is queued, close with 1001, end. SIGHUP: load the model and the ACL again.
    Exit codes: 0 stopped on request, 1 failed and may be started again, 2 not before something is changed.
    """
    given = {name: value for name, value in options.items() if value is not None}
    try:
        settings = load(config, os.environ, given, _dev_defaults() if dev else None)
        if dev:
            settings = _with_dev_secret(settings)
        logs.set_up(settings.log_format, settings.log_level, secrets_of(settings))
        keys = _keys(settings)
        if settings.store is not None:
            _try_driver()
        # Tried here, so that a wrong key or algorithm is an error now and not at the first client.
        asyncio.run(_try_keys(settings, keys))
        access = Access(Acl.load(settings.acl) if settings.acl else None, settings.access_default)
        model = _model(settings)
        announce = _announce_dev(settings) if dev else _announce
        site = _site(settings, dev=dev)
        code = run_node(settings, model, lambda: _verifier(settings, _keys(settings)), access, announce, site)
    except RenamedSetting as error:
        raise click.UsageError(str(error)) from None
    except (ConfigError, KeySourceError, AclError, ModelError) as error:
        raise CannotStart(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"cannot listen: {error.strerror}") from None
    sys.exit(code)


for _name in FIELDS:
    _option(_name)(serve)


def _keys(settings: Settings) -> KeySource:
    if settings.jwt_secret_file:
        return SharedSecret.from_file(settings.jwt_secret_file)
    if settings.jwt_public_key:
        return PemPublicKey.from_file(settings.jwt_public_key)
    if settings.jwks:
        url = settings.jwks.startswith(("https://", "http://"))
        return JwksUrl(settings.jwks) if url else JwksFile(settings.jwks)
    raise ConfigError(
        "no key to verify tokens with: give --jwt-secret-file, --jwt-public-key or --jwks (or --dev to try out)"
    )


def _verifier(settings: Settings, keys: KeySource) -> Verifier:
    return Verifier(
        keys,
        issuer=settings.jwt_issuer,
        audience=settings.jwt_audience,
        leeway_s=settings.jwt_leeway_s,
        algorithms=settings.jwt_algorithms,
        user_claim=settings.jwt_user_claim,
    )


async def _try_keys(settings: Settings, keys: KeySource) -> None:
    try:
        _verifier(settings, keys)
        try:
            await keys.prepare(time.time())
        except KeySourceError as error:
            if isinstance(keys, JwksUrl):
                raise click.ClickException(str(error)) from None
            raise
    finally:
        await keys.close()


def _try_driver() -> None:
    with needing_driver():
        import psycopg  # noqa: F401


def _model(settings: Settings) -> Model:
    if settings.model == "open":
        log.warning("model `open`: any schema name is accepted, and event data is not checked")
        return open_model(accept_init=settings.accept_init)
    if settings.model is not None:
        return load_model(Path(settings.model), accept_init=settings.accept_init)
    if tuple(settings.profiles) == ("canonical",):
        raise ConfigError("profiles: canonical needs a model: give --model DIR, or --model open")
    if "canonical" in settings.profiles:
        log.info("no model configured: only the compatibility profile is offered")
    return no_model(accept_init=settings.accept_init)


def _site(settings: Settings, *, dev: bool) -> AdminSite:
    """What the admin port serves for people: the console, and the demo of a development server."""
    console = ConsoleSite(settings) if settings.console else None
    demo = _demo(settings) if dev else None

    def add_routes(app: Application, ws_url: str, host: AdminHost) -> None:
        if console is not None:
            console.add_routes(app, host)
        if demo is not None:
            demo.add_routes(app, ws_url)

    return add_routes


def _announce(line: str) -> None:
    print(line, flush=True)


# -- --dev -----------------------------------------------------------------------------------------------------


def _dev_defaults() -> dict[str, Any]:
    """Defaults of `--dev`; other settings override them."""
    return {"access_default": "allow", "model": str(sample_model()), "allow_model_edits": True}


def _with_dev_secret(settings: Settings) -> Settings:
    """The secret is in the data directory, so that tokens stay valid after a restart."""
    if settings.jwt_secret_file or settings.jwt_public_key or settings.jwks:
        return settings
    return msgspec.structs.replace(settings, jwt_secret_file=str(_dev_secret(Path(settings.data))))


def _dev_secret(data: Path) -> Path:
    data.mkdir(parents=True, exist_ok=True)
    path = data / DEV_SECRET_FILE
    if not path.exists():
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(48))
    return path


def _demo(settings: Settings) -> DemoSite | None:
    """The demo signs tokens, so that it needs the secret, and uses the trees of the sample model."""
    if settings.jwt_secret_file is None or "compatibility" not in settings.profiles:
        return None
    return DemoSite(read_secret(settings.jwt_secret_file))


def _program() -> str:
    """The command that starts this program again from the current directory."""
    command = Path(sys.argv[0])
    if command.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m unisono"
    return shlex.quote(os.path.relpath(command) if command.is_absolute() else str(command))


def _console_line(settings: Settings) -> str:
    if not settings.console:
        return ""
    return f"The console, already logged in:              {console_link(Path(settings.data))}\n"


def _announce_dev(settings: Settings) -> Callable[[str], None]:
    def announce(line: str) -> None:
        _announce(line)
        if settings.jwt_secret_file is None:
            return
        secret = read_secret(settings.jwt_secret_file)
        url, admin = (reachable_url(line.split()[place]) for place in (2, 4))
        program = _program()
        tokens = {
            client: sign_token(secret, client, ttl_s=DEV_TOKEN_TTL_S, now_s=time.time())
            for client in DEV_CLIENTS
        }
        first, second = DEV_CLIENTS
        where = f"--url {url} --partition {DEV_PARTITION}"
        item = '{"type":"treePush","payload":{"target":"outline","value":{"id":"n1","title":"Hello"}}}'
        print(
            f"\nA development server: everybody with a token below may touch everything.\n"
            f"Data: {settings.data}   Model: {settings.model}\n\n"
            f"In a browser, a shared outline and a board: {admin}/demo/\n"
            f"{_console_line(settings)}\n"
            f"In a second terminal, watch a partition as {first}:\n\n"
            f"  {program} tail {where} --token {tokens[first]}\n\n"
            f"In a third, put something into it as {second}:\n\n"
            f"  {program} submit {where} --token {tokens[second]} --event '{item}'\n",
            flush=True,
        )

    return announce
