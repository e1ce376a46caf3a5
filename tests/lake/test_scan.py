"""Which files are read one after the other, and in which order."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from unisono.lake.columns import bucket_of
from unisono.lake.scan import OpenFiles, chains, open_bytes
from unisono.lake.sections import Section
from unisono.lake.storage import BY_PARTITION
from unisono.lake.write import UNBUCKETED, DataFile

BUCKETS = 2
Rows = list[tuple[bytes, int]]


@st.composite
def lakes(draw: st.DrawFn) -> list[tuple[DataFile, Rows]]:
    """Runs of files as exports and compactions leave them, each with its rows: not split, by bucket or by section."""
    made: list[tuple[DataFile, Rows]] = []
    head = 0
    for _ in range(draw(st.integers(1, 4))):
        events = draw(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=12))
        rows = sorted((name, head + number) for number, name in enumerate(events, 1))
        head += len(events)
        count = draw(st.sampled_from([1, BUCKETS, 4 * BUCKETS]))
        for number in range(count):
            own = [row for row in rows if bucket_of(row[0], count) == number]
            per_file = draw(st.integers(1, 4))
            for start in range(0, len(own), per_file):
                made.append(_file(own[start : start + per_file], number, count, len(made)))
    return made


def _file(rows: list[tuple[str, int]], number: int, count: int, serial: int) -> tuple[DataFile, Rows]:
    bucket = UNBUCKETED if count == 1 else number % BUCKETS
    folder = Section(count, number).folder if count > BUCKETS else ""
    ids = [id for _, id in rows]
    path = f"bucket={bucket}/{folder}{serial}"
    file = DataFile(BY_PARTITION, path, 1, len(rows), min(ids), max(ids), bucket, rows[0][0], rows[-1][0])
    return file, [(name.encode(), id) for name, id in rows]


@given(lakes(), st.randoms(use_true_random=False))
def test_chains_have_each_file_once_and_their_rows_in_order(
    made: list[tuple[DataFile, Rows]], chance: random.Random
) -> None:
    rows = {file.path: own for file, own in made}
    some = chance.sample([file for file, _ in made], chance.randint(1, len(made)))
    found = chains(some)
    assert sorted(file.path for chain in found for file in chain) == sorted(file.path for file in some)
    of_chains = [[row for file in chain for row in rows[file.path]] for chain in found]
    assert all(own == sorted(own) for own in of_chains)
    # Merged by partition, and of one partition by chain: its events ascend.
    merged = sorted((row for own in of_chains for row in own), key=lambda row: row[0])
    assert merged == sorted(merged)


def test_files_that_follow_each_other_are_open_one_at_a_time() -> None:
    def file(run: int, first: str, last: str, bucket: int = 0, section: str = "") -> DataFile:
        path = f"bucket={bucket}/{section}{run}-{first}"
        return DataFile(BY_PARTITION, path, 8 << 20, 8, 10 * run + 1, 10 * run + 9, bucket, first, last)

    joined = [file(0, "a", "c"), file(0, "c", "c"), file(0, "c", "f")]
    assert chains(reversed(joined)) == [joined]
    assert chains([*joined, file(0, "a", "z", 1)]) == [joined, [file(0, "a", "z", 1)]]
    later = [file(1, "f", "h"), file(2, "h", "k")]
    assert chains([*later, *joined]) == [[*joined, *later]], "partitions that come one after the other"
    assert chains([*joined, file(1, "e", "h"), *later[1:]]) == [joined, [file(1, "e", "h"), later[1]]]
    sections = [file(3, name, "z", 0, f"section-4-{number}/") for number, name in ((0, "l"), (2, "m"))]
    assert chains([*joined, *sections]) == [joined, *([one] for one in sections)]
    memory = OpenFiles(open_bytes)
    assert memory.with_more(joined) == open_bytes(joined[:1])
    assert OpenFiles().with_more(joined) == 3
