"""`unisono lake certificate`: checks the certificate of an erasure."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from unisono.cli.lake.command import EXIT_NOT_DONE, _pairs, explain_option, explaining, reporting


@click.command("certificate")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--lake", metavar="DIR|URL", help="Compare with what this lake says of the erasure.")
@click.option(
    "--key",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The public key (PEM) of who signed it; the signature is FILE.jws.",
)
@click.option(
    "--storage-option",
    multiple=True,
    metavar="K=V",
    callback=_pairs,
    help="For an object store, as delta-rs takes them (aws_region=…). May be repeated.",
)
@explain_option
def certificate_(
    file: Path, lake: str | None, key: Path | None, storage_option: dict[str, str], explain: bool
) -> None:
    """Check the certificate of an erasure: its hash, its signature, and the lake it is of. Needs no Spark.

    Exit code 0: all that was checked holds; 1: something contradicts it.
    """
    with reporting(), explaining(explain):
        from unisono.lake.lake import Lake
        from unisono.pipeline.jobs.erase.check_certificate import check, load_key

        signature = file.with_name(f"{file.name}.jws")
        done = check(
            file.read_bytes(),
            None if lake is None else Lake.at(lake, storage_option),
            signature.read_bytes() if signature.exists() else None,
            None if key is None else load_key(key.read_bytes(), private=False),
        )
    for text in done.confirmed:
        click.echo(f"right: {text}")
    for text in done.faults:
        click.echo(f"WRONG: {text}")
    if done.faults:
        sys.exit(EXIT_NOT_DONE)
