"""What the site needs beyond the files of docs/: pages that stand elsewhere in the repository, and the API reference.

Links between pages stay as they are in the repository, where they work as well; here those that leave docs/ are
led to the page made from their target, or shown without a link where there is none (source files).
"""

from __future__ import annotations

import ast
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File, Files
from pymdownx.slugs import slugify

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig

ROOT = Path(__file__).parents[2]

FROM_ELSEWHERE = {
    "docs/start.md": "index.md",
    "docs/README.md": "documents.md",
    "README.md": "tour.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "deploy/README.md": "deploying.md",
}

SHIM = "assets/javascripts/iframe-worker.js"

API = {
    "reference/python-api.md": (
        "Python client",
        "Made from the code. [Use the Python client](../howto/python-client.md) explains how they fit together.",
        "unisono/client/__init__.py",
    ),
    "reference/spark-api.md": (
        "Spark source and jobs",
        "Made from the code. [From Python](../pipeline-python.md) shows them at work.",
        "unisono/pipeline/__init__.py",
    ),
}

_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The decisions, one after the other: a new one needs no line here."""
    assert config.nav is not None
    decisions = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("*.md"))
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")  # as the pages' links expect them
    config.extra["polyfills"] = [SHIM]  # in place of one at another host
    config.nav[-1] = {"Decisions": [f"decisions/{name}" for name in decisions]}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, name in FROM_ELSEWHERE.items():
        stands = (
            files.get_file_from_path(source.removeprefix("docs/")) if source.startswith("docs/") else None
        )
        if stands is not None:
            files.remove(stands)
        files.append(File.generated(config, name, content=(ROOT / source).read_text(encoding="utf-8")))
    for name, (title, text, package) in API.items():
        parts = [f"# {title}", text, *(f"::: {public}" for public in _public(package))]
        files.append(File.generated(config, name, content="\n\n".join(parts) + "\n"))
    shim = (ROOT / "tools" / "site" / "iframe-worker.js").read_text(encoding="utf-8")
    files.append(File.generated(config, SHIM, content=shim))
    return files


def _public(package: str) -> list[str]:
    """What a package offers by its `__all__`, clients first; for Spark also the source and the sink."""
    tree = ast.parse((ROOT / "src" / package).read_text(encoding="utf-8"))
    (names,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == "__all__"
    )
    module = posixpath.dirname(package).replace("/", ".")
    first = [name for name in ("SyncClient", "BlockingClient") if name in names]
    spark = (
        ["unisono.pipeline.spark.source", "unisono.pipeline.spark.sink"]
        if module.endswith("pipeline")
        else []
    )
    home = "unisono.pipeline.api" if spark else module
    return [f"{home}.{name}" for name in [*first, *(name for name in names if name not in first)]] + spark


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    source = _source_of(page.file.src_uri)
    here = posixpath.dirname(page.file.src_uri)
    parts = _FENCE.split(markdown)
    for number, part in enumerate(parts):
        if number % 2:
            # What follows the language is for the tests that play the page.
            parts[number] = re.sub(r"\A```(\w+) .*", r"```\1", part)
        else:
            parts[number] = _LINK.sub(lambda found: _led(found, source, here), part)
    return "".join(parts)


def _source_of(uri: str) -> str:
    """Where a page stands in the repository."""
    return next((source for source, name in FROM_ELSEWHERE.items() if name == uri), f"docs/{uri}")


def _led(found: re.Match[str], source: str, here: str) -> str:
    image, text, target = found.groups()
    if re.match(r"[a-z]+:|#", target):
        return found[0]
    path, hash_sign, anchor = target.partition("#")
    place = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if place in FROM_ELSEWHERE:
        uri = FROM_ELSEWHERE[place]
    elif place.startswith("docs/") and (ROOT / place).is_file():
        uri = place.removeprefix("docs/")
    else:
        assert (ROOT / place).exists(), f"{source}: {target} leads nowhere"
        return text if image else f"{text} (`{place}`)" if text.strip("`") != place else text
    return f"{image}[{text}]({posixpath.relpath(uri, here or '.')}{hash_sign}{anchor})"
