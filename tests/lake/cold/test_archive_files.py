"""Files of a lake that change, are damaged, or do not say what they have, while an archive reads them."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path

import pytest

from tests.lake.cold.shapes import CACHE, EVENTS, ROOMS, same
from tests.lake.lakes import compact, export_to
from tests.pipeline.history import NAMES
from unisono.lake.cold.pages import REFRESH_S, LakePages
from unisono.lake.errors import LakeUnusable
from unisono.lake.lake import Lake
from unisono.store.port import Page
from unisono.store.sqlite.log import SqliteReader


def test_a_newer_version_is_looked_for_now_and_then(whole: Path, tmp_path: Path) -> None:
    lake = Lake.at(str(tmp_path / "lake"))
    export_to(lake, whole, *range(500, EVENTS, 500), EVENTS)
    now = 0.0
    pages = LakePages(lake, CACHE, lambda: now)
    pages.page(["plain"], 0, EVENTS, limit=1_000, bytes_max=1 << 20)
    before = {key[:2] for key in pages._files._kept._items}
    compact(lake)
    pages.page(["plain"], 0, EVENTS, limit=1_000, bytes_max=1 << 20)
    assert {key[:2] for key in pages._files._kept._items} == before, "not at every page"
    now = REFRESH_S + 1
    pages.page(["plain"], 0, EVENTS, limit=1_000, bytes_max=1 << 20)
    assert not before & {key[:2] for key in pages._files._kept._items}, "nothing is kept of replaced files"
    assert not before & set(pages._files._open)
    pages.close()


def test_a_damaged_file_is_an_error_and_no_hole(whole: Path, tmp_path: Path) -> None:
    lake = Lake.at(str(tmp_path / "lake"))
    export_to(lake, whole)
    pages = LakePages(lake, CACHE)
    for file in lake.view().partition_files:
        path = Path(lake.storage.uri(file.table, file.path))
        content = bytearray(path.read_bytes())
        content[len(content) // 2 - 3_000 : len(content) // 2 + 3_000] = bytes(6_000)
        path.write_bytes(content)
    with pytest.raises(LakeUnusable):
        pages.page([*ROOMS, *NAMES], 0, EVENTS, limit=1 << 40, bytes_max=1 << 40)
    pages.close()


@pytest.mark.req("DUR-06")
def test_a_bit_that_flipped_is_an_error_and_no_other_text(whole: Path, tmp_path: Path) -> None:
    lake = Lake.at(str(tmp_path / "lake"))
    export_to(lake, whole)
    names = [*ROOMS, *NAMES]

    def read() -> Page:
        with closing(LakePages(lake, CACHE)) as pages:
            return pages.page(names, 0, EVENTS, limit=1 << 40, bytes_max=1 << 40)

    sound, failures, chance = read(), 0, random.Random("bits")
    (file,) = lake.view().partition_files
    path = Path(lake.storage.uri(file.table, file.path))
    content = path.read_bytes()
    for _ in range(12):
        damaged = bytearray(content)
        damaged[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        try:
            assert same(read(), sound)
        except LakeUnusable:
            failures += 1
    assert failures > 6, "nearly all of a file is what events said"


def test_a_table_that_does_not_say_what_its_files_hold(whole: Path, tmp_path: Path) -> None:
    lake = Lake.at(str(tmp_path / "lake"))
    export_to(lake, whole)
    commit = tmp_path / "lake" / "by_partition" / "_delta_log" / f"{1:020d}.json"
    commit.write_text(commit.read_text().replace("minValues", "minValuez"))
    with pytest.raises(LakeUnusable, match=r"another program wrote .*/bucket=.*, or changed its statistics"):
        lake.table("by_partition").files()
    pages = LakePages(lake, CACHE)
    with closing(SqliteReader.open(whole)) as reader:
        for name in ROOMS[:5]:
            expected = reader.page([name], 0, EVENTS, limit=EVENTS, bytes_max=1 << 30)
            assert same(pages.page([name], 0, EVENTS, limit=EVENTS, bytes_max=1 << 30), expected)
    pages.close()
