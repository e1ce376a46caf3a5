"""`unisono token`: sign a token with a shared secret, for tests and small installations."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Final

import click

from unisono.front.auth.keys import KeySourceError, read_secret
from unisono.front.auth.verify import SCOPE_CLAIMS, sign_token
from unisono.protocol.identities import DERIVED_CLAIM, client_id_fault
from unisono.protocol.partitions import NAME_BYTES_MAX, normal_start

OWN_CLAIMS: Final = frozenset({"client_id", "sub", "exp", "iat", "iss", "aud", DERIVED_CLAIM, *SCOPE_CLAIMS})


@click.command()
@click.option(
    "--jwt-secret-file",
    "secret_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="The shared secret that the server verifies with.",
)
@click.option("--client-id", required=True, help="Who the token is for.")
@click.option("--user", "user_id", help="The person behind the client, claim `sub`; stored with its events.")
@click.option(
    "--claim",
    "claims",
    multiple=True,
    metavar="NAME=VALUE",
    help="Another claim; VALUE is JSON or plain text. May be repeated.",
)
@click.option(
    "--derived-ids",
    is_flag=True,
    help="May also connect as CLIENT_ID/…, as `tail` and `submit` do so that a running client goes on.",
)
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
    user_id: str | None,
    claims: tuple[str, ...],
    derived_ids: bool,
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
    if user_id is not None and (fault := client_id_fault(user_id)) is not None:
        raise click.UsageError(f"--user {fault}")
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
            user_id=user_id,
            derived_client_ids=derived_ids,
            claims=_more_claims(claims),
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


def _more_claims(given: tuple[str, ...]) -> dict[str, object]:
    claims: dict[str, object] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise click.UsageError("--claim needs NAME=VALUE")
        if name in OWN_CLAIMS:
            raise click.UsageError(f"--claim {name}: this claim has an option of its own")
        try:
            claims[name] = json.loads(value)
        except ValueError:
            claims[name] = value
    return claims
