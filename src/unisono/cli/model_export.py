"""`unisono model export`: what a client in another language needs of a model, as one JSON object."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import click

from unisono.model.declared import NAME
from unisono.model.load import MANIFEST, ModelError, load_model
from unisono.model.model import Model
from unisono.vocabulary import Json, JsonObject


@click.command("export")
@click.argument("directory", type=click.Path(path_type=Path))
def export(directory: Path) -> None:
    """Print what a JavaScript client needs of the model in DIRECTORY.

    One JSON object with the name, the version, the digest and the declarative reducers, as `eventModel` of
    @unisono/client takes it. Schemas that are reduced in Python alone are named on stderr: views in JavaScript do not
    show what their events do.
    """
    try:
        model = load_model(directory)
    except ModelError as error:
        raise click.ClickException(str(error)) from None
    for schema in reduced_in_python(model):
        click.echo(f"{schema}: is reduced in Python alone", err=True)
    click.echo(json.dumps(exported(model), ensure_ascii=False, indent=2))


def exported(model: Model) -> JsonObject:
    named = tomllib.loads(model.files[MANIFEST].decode()).get("reducers")
    reducers: Json = json.loads(model.files[named]) if named else {}
    return {"name": model.name, "version": model.version, "digest": model.digest, "reducers": reducers}


def reduced_in_python(model: Model) -> list[str]:
    assert model.canonical is not None
    rules = model.canonical.rules
    return [
        schema
        for schema in rules.schemas
        if (rule := rules.reducer(schema)) is not None and rule.name != NAME
    ]
