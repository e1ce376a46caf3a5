"""`unisono token`: sign a token with a shared secret, for tests and small installations."""

from __future__ import annotations

import time
from pathlib import Path

import click

from unisono.front.auth.keys import KeySourceError, read_secret
from unisono.front.auth.verify import sign_token
from unisono.protocol.identities import client_id_fault
from unisono.protocol.partitions import NAME_BYTES_MAX, normal_start


@click.command()
@click.option(
    "--jwt-secret-file",
    "secret_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="The shared secret that the server verifies with.",
)
@click.option("--client-id", required=True, help="Who the token is for.")
@click.option("--partition", "partitions", multiple=True, help="A partition it may touch; may be repeated.")
@click.option(
    "--prefix", "prefixes", multiple=True, help="A prefix of partitions it may touch; may be repeated."
)
@click.option(
    "--read-partition", "readable", multiple=True, help="A partition it may only read; may be repeated."
)
@click.option(
    "--read-prefix",
    "readable_prefixes",
    multiple=True,
    help="A prefix of partitions it may only read; may be repeated.",
)
@click.option(
    "--ttl",
    "ttl_s",
    type=click.FloatRange(min=0, min_open=True),
    default=3600.0,
    show_default=True,
    help="Seconds until it expires.",
)
@click.option("--algorithm", default="HS256", show_default=True, help="HS256, HS384 or HS512.")
@click.option("--issuer", help="Claim `iss`.")
@click.option("--audience", help="Claim `aud`.")
def token(
    secret_file: Path,
    client_id: str,
    partitions: tuple[str, ...],
    prefixes: tuple[str, ...],
    readable: tuple[str, ...],
    readable_prefixes: tuple[str, ...],
    ttl_s: float,
    algorithm: str,
    issuer: str | None,
    audience: str | None,
) -> None:
    """Print a signed token.

    Without --partition, --prefix, --read-partition and --read-prefix the token says nothing about access, and
    the server's ACL and --access-default decide.

    \b
      unisono token --jwt-secret-file secret --client-id alice --prefix team-a/ --ttl 86400
    """
    if (fault := client_id_fault(client_id)) is not None:
        raise click.UsageError(f"--client-id {fault}")
    for option, names in (
        ("--partition", partitions),
        ("--prefix", prefixes),
        ("--read-partition", readable),
        ("--read-prefix", readable_prefixes),
    ):
        if any(normal_start(name) is None for name in names):
            raise click.UsageError(f"{option}: a partition's name has at most {NAME_BYTES_MAX} bytes")
    try:
        signed = sign_token(
            read_secret(secret_file),
            client_id,
            partitions=partitions or None,
            prefixes=prefixes or None,
            readable_partitions=readable or None,
            readable_prefixes=readable_prefixes or None,
            ttl_s=ttl_s,
            now_s=time.time(),
            algorithm=algorithm,
            issuer=issuer,
            audience=audience,
        )
    except KeySourceError as error:
        raise click.ClickException(str(error)) from None
    click.echo(signed)
