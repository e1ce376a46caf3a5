"""Values of options of `unisono lake` that cannot be meant: an error that says so, before any work."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands import unisono


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("export", "--store", "", "--lake", "lake"), "it is empty: name a log, or leave the option out"),
        (("audit", "--store", "", "--lake", "lake"), "it is empty"),
        (("import", "a.jsonl", "--store", ""), "it is empty"),
        (("import", "a.jsonl", "--data", ""), "it is empty"),
        (("export", "--data", "", "--lake", "lake"), "it is empty"),
        (("export", "--data", "//no/where", "--lake", "lake"), "unisono: /no/where holds no log"),
        (("retain", "--lake", "lake", "--keep", "999999999999999999d"), "too long: 365000d is the most"),
        (("report", "--lake", "lake", "--out", "out", "--since", "9" * 400 + "d"), "365000d is the most"),
        (("run", "--lake", "lake", "--keep", "365001d"), "365000d is the most"),
        (("import", "a.jsonl", "--staging", "s3://bucket/a"), "s3://bucket/a is a URL: name a path of this"),
        (("import", "a.jsonl", "--rejects", "s3://bucket/a"), "is a URL"),
        (("audit", "--lake", "lake", "--out", "file:///tmp/a"), "is a URL"),
        (("export", "--lake", "lake", "--follow", "--checkpoint", "gs://bucket/a"), "is a URL"),
        (("views", "--lake", "lake", "--duckdb", "s3://bucket/a.duckdb"), "is a URL"),
    ],
)
def test_refused(
    arguments: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = unisono("lake", *arguments)
    assert done.exit_code == 2
    assert says in done.stderr
    assert list(tmp_path.iterdir()) == []
