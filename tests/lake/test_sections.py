"""Sections of buckets: which partitions are where, and how runs grow with a lake."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from unisono.lake.columns import bucket_of
from unisono.lake.file_checks import is_own
from unisono.lake.merge import PartitionSubset
from unisono.lake.scan import NameIndex, file_may_contain, open_files_needed
from unisono.lake.sections import SECTIONS_MAX, Section, run_rows_max, section_of, sections_for
from unisono.lake.storage import BY_PARTITION
from unisono.lake.write import DataFile

MILLION = 1_000_000


def file(bucket: int, section: Section | None = None, run: int = 0) -> DataFile:
    folder = "" if section is None else section.folder
    path = f"bucket={bucket}/{folder}{run * 10 + 1:012d}-{run * 10 + 9:012d}-{'0' * 32}.parquet"
    return DataFile(BY_PARTITION, path, 1, 1, run * 10 + 1, run * 10 + 9, bucket, "", "~")


@given(st.text(max_size=20), st.sampled_from([1, 3, 16]), st.integers(0, 3), st.integers(0, 3))
def test_a_partition_is_in_one_section_of_its_bucket(name: str, buckets: int, fine: int, coarse: int) -> None:
    """Whatever the numbers of sections, and for readers that know of none."""
    count, other = buckets * 4**fine, buckets * 4**coarse
    bucket = bucket_of(name, buckets)
    own = [number for number in range(count) if Section(count, number).holds(name)]
    assert [number % buckets for number in own] == [bucket]
    section, wider = Section(count, own[0]), Section(other, bucket_of(name, other))
    assert section.meets(wider)
    assert wider.meets(section)
    assert section.within(wider) == (count >= other)
    ours, foreign = file(bucket, section), file(bucket, Section(count, (own[0] + buckets) % count))
    assert section_of(ours) == section
    assert is_own(ours)
    assert file_may_contain(ours, name, buckets) == (name.encode() <= b"~")
    assert PartitionSubset(buckets, (bucket,), section=wider).may_be_in(ours)
    assert PartitionSubset(buckets, (bucket,)).may_be_in(ours)
    assert not PartitionSubset(buckets, (bucket,)).splits(ours)
    assert PartitionSubset(buckets, (bucket,), section=wider).splits(ours) == (count < other)
    if count > buckets:
        assert not file_may_contain(foreign, name, buckets)
        assert NameIndex([name], buckets).in_file(foreign) == []


def test_runs_grow_with_the_lake() -> None:
    assert run_rows_max(256 * MILLION, 16, MILLION) == 16 * MILLION, "as long as that makes few runs"
    assert run_rows_max(257 * MILLION, 16, MILLION) == 64 * MILLION
    assert run_rows_max(10_000 * MILLION, 16, MILLION) == 1_024 * MILLION, "10 billion rows are 10 runs"
    assert run_rows_max(105_000 * MILLION, 16, MILLION) == SECTIONS_MAX * MILLION
    assert sections_for(16 * MILLION, 16, MILLION) == 16
    assert sections_for(16 * MILLION + 1, 16, MILLION) == 64
    assert sections_for(10**15, 16, MILLION) == SECTIONS_MAX
    assert sections_for(10**15, 10, MILLION) == 2_560
    assert sections_for(10**15, 5_000, MILLION) == 5_000


def test_a_partition_is_in_one_section_of_a_run() -> None:
    """However many sections a run has, one of them is open."""
    sections = [file(number % 16, Section(64, number), run) for number in range(64) for run in range(3)]
    buckets = [file(bucket, None, 3 + run) for bucket in range(16) for run in range(2)]
    assert open_files_needed(sections) == 3
    assert open_files_needed(sections + buckets) == 5
    assert open_files_needed([*sections, *buckets, file(-1, None, 9)]) == 6
