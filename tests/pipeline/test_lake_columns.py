from __future__ import annotations

import hashlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.pipeline.history import NAMES, row_of
from unisono.lake.columns import bucket_of, name_hash, to_batch, type_and_schema
from unisono.lake.digests import Digest, digest, total
from unisono.store.port import Record


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (b'{"payload":{"data":1,"schema":"note.added"},"type":"event"}', ("event", "note.added")),
        (b'{"payload":{"schema":"x"},"type":"set"}', ("set", None)),
        (b'{"payload":{"schema":7},"type":"event"}', ("event", None)),
        (b'{"payload":[{"schema":"x"}],"type":"event"}', ("event", None)),
        (b'{"type":"event"}', ("event", None)),
        (b'{"payload":{},"type":7}', (None, None)),
        (b"[]", (None, None)),
        (b"7", (None, None)),
        (b'{"payload":{},"type":"ev', (None, None)),
    ],
)
def test_type_and_schema_of_whatever_an_event_is(
    event: bytes, expected: tuple[str | None, str | None]
) -> None:
    assert type_and_schema(event) == expected


def test_rows_are_the_records(records: list[Record]) -> None:
    assert to_batch(records).to_pylist() == [row_of(record) for record in records]
    assert to_batch([]).num_rows == 0


def test_a_bucket_can_be_computed_without_us(spark: SparkSession) -> None:
    names = [*NAMES, *(f"room-{number}" for number in range(100))]
    rows = spark.createDataFrame([(name,) for name in names], "partition string").selectExpr(
        "partition", "cast(conv(substr(sha2(partition, 256), 1, 8), 16, 10) as bigint) % 16 as bucket"
    )
    assert {row.partition: row.bucket for row in rows.collect()} == {
        name: bucket_of(name, 16) for name in names
    }
    assert bucket_of("plain", 16) == int(hashlib.sha256(b"plain").hexdigest()[:8], 16) % 16


_rows = st.lists(st.tuples(st.integers(1, 2**53 - 1), st.binary(min_size=0, max_size=40)), max_size=40)


def _table(rows: list[tuple[int, bytes]], name: str | None = None) -> pa.Table:
    columns = {
        "committed_id": pa.array([id for id, _ in rows], pa.int64()),
        "hash": pa.array([hash.ljust(32, b"x") for _, hash in rows], pa.binary()),
    }
    if name is not None:
        columns["partition"] = pa.array([name] * len(rows), pa.string())
    return pa.table(columns)


@given(_rows, st.randoms(), st.integers(0, 40))
def test_digests_add_up_in_any_order(rows: list[tuple[int, bytes]], chance: object, cut: int) -> None:
    whole = digest(_table(rows))
    shuffled = list(rows)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    parts = [digest(_table(shuffled[cut:])), digest(_table(shuffled[:cut]))]
    assert total(parts) == whole
    assert digest(_table([(0, b""), *rows]).slice(1)) == whole, "a slice is its rows, not its buffers"


@given(
    st.lists(
        st.tuples(st.integers(1, 1000), st.binary(min_size=32, max_size=32)),
        min_size=2,
        unique_by=(lambda row: row[0], lambda row: row[1][:8]),
    )
)
def test_a_digest_notices_swaps_losses_and_repeats(rows: list[tuple[int, bytes]]) -> None:
    whole = digest(_table(rows))
    (first, one), (second, other), *rest = rows
    assert digest(_table([(first, other), (second, one), *rest])) != whole
    assert digest(_table(rows[1:])) != whole
    assert digest(_table([*rows, rows[0], rows[0]])) != whole
    assert digest(_table(rows, "p")) != digest(_table(rows, "q"))


def test_a_digest_is_what_it_says() -> None:
    hashes = [hashlib.sha256(bytes([number])).digest() for number in range(3)]
    seen = digest(_table(list(enumerate(hashes, start=5)), "p"))
    mixed = [bytes(a ^ b for a, b in zip(hash, name_hash("p"), strict=True)) for hash in hashes]
    xor = int.from_bytes(mixed[0]) ^ int.from_bytes(mixed[1]) ^ int.from_bytes(mixed[2])
    weighted = sum(int.from_bytes(row[:8], "little") * id for id, row in enumerate(mixed, start=5)) % 2**64
    assert seen == Digest(3, 5, 7, f"{xor:064x}", weighted)


def test_damaged_hashes_still_have_a_digest() -> None:
    rows = pa.table({"committed_id": [1, 2], "hash": pa.array([b"short", b"y" * 32], pa.binary())})
    assert digest(rows).rows == 2
    assert digest(rows) != digest(rows.slice(0, 1))
