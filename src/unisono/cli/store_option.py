"""What commands on a shared log have in common: the option that names it, the driver, and its errors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from unisono.extras import install_command
from unisono.store.copy import CopyRefused
from unisono.store.port import StorageError, StoreUnusable

EXIT_UNUSABLE = 2


class DriverMissing(click.ClickException):
    """The package for PostgreSQL is not installed."""

    exit_code = EXIT_UNUSABLE


@contextmanager
def needing_driver() -> Iterator[None]:
    """Around an import: the PostgreSQL driver is installed only where it is used."""
    try:
        yield
    except ImportError as error:
        raise DriverMissing(
            f"this needs the PostgreSQL driver: {install_command('postgres')} ({error})"
        ) from None


@contextmanager
def error_exit() -> Iterator[None]:
    """End the program with the error of a log as one line, instead of a traceback."""
    try:
        yield
    except (StoreUnusable, StorageError, CopyRefused) as error:
        click.echo(f"unisono: {error}", err=True)
        sys.exit(EXIT_UNUSABLE)


def store_option(*, required: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        "--store",
        required=required,
        envvar="UNISONO_STORE",
        metavar="DSN",
        callback=_only_postgres,
        help="The database, postgresql://…; the variable UNISONO_STORE keeps a password out of sight.",
    )


def _only_postgres(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not value.startswith(("postgresql://", "postgres://")):
        raise click.BadParameter(
            "must be postgresql://…; an embedded log is a directory, which `unisono serve` makes"
        )
    return value
