"""Checks that a lake is a copy of a log, and a model the one its states were folded with (DUR-07, DUR-08)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

from unisono.display import hide_credentials
from unisono.lake.errors import LakeUnusable
from unisono.lake.lake import Lake
from unisono.lake.origin import LOG_EPOCH, LOG_ID, MODEL, Origin, note_text, number
from unisono.lake.storage import LOG
from unisono.pipeline.errors import Mismatch, ModelContentChanged, NoSuchRange
from unisono.pipeline.job_model import ShippedModel, in_force
from unisono.pipeline.open_log import LogExtent, extent, open_reader, read_range
from unisono.store.cluster import ModelBundle
from unisono.store.port import LogReader

ANOTHER: Final = (
    "the lake is a copy of the log {lake}…, and {store} holds the log {log}: it is another one. If it was restored "
    "from a backup of the first one, `unisono lake export --adopt` compares what both have and continues"
)


def origin_of(store: str) -> Origin:
    """The identity of a store's log, and its model."""
    reader: Any = open_reader(store)
    try:
        bundle: ModelBundle | None = reader.model_in_force()
        return Origin(reader.identity(), *((bundle.version, bundle.digest) if bundle is not None else ()))
    finally:
        reader.close()


def require_source(store: str, lake: Lake, to: int | None = None) -> None:
    """Refuse a log from which this lake cannot be filled up to `to`: before a lake is made that would stay empty."""
    log_extent = extent(store)
    require_reached(log_extent, to)
    if log_extent.pruned_to and not lake.exists():
        raise NoSuchRange(
            f"events 1 to {log_extent.pruned_to} were pruned from the log and there is no lake at "
            f"{lake.storage.location}: name the lake that has them"
        )


def model_of_log(store: str, lake: Lake) -> ShippedModel:
    """The model in force at the log that this lake is a copy of; another log is refused."""
    require_same_log(store, lake, lake.head(), extent(store))
    return in_force(store)


def require_reached(log_extent: LogExtent, to: int | None) -> None:
    """Refuse an id beyond the log's end."""
    if to is not None and to > log_extent.head:
        raise NoSuchRange(f"the log ends at {log_extent.head}, {to} is requested")


def require_same_log(
    store: str, lake: Lake, head: int, log_extent: LogExtent, *, adopting: bool = False
) -> None:
    """Refuse a log that the lake is not a copy of. `head` is the lake's, read before `log_extent`.

    The lake's last event must be the same in the log, and the recorded log id must match, unless the log is adopted.
    For an adopted log, or another log epoch, all events that both have are compared.
    """
    if head > log_extent.head:
        raise LakeUnusable(
            f"the lake holds events up to {head} and the log ends at {log_extent.head}: "
            "it is a copy of another log, or this log has lost events"
        )
    if log_extent.pruned_to > head:
        raise NoSuchRange(
            f"events {head + 1} to {log_extent.pruned_to} were pruned from the log and are not in the lake"
        )
    reader = open_reader(store)
    try:
        _compare(reader, lake, max(log_extent.pruned_to, head - 1), head)
        log, table = reader.identity(), lake.table(LOG)
        noted, epoch = table.read_note(LOG_ID), table.read_note(LOG_EPOCH)
        if noted not in (None, number(log.log_id)) and not adopting:
            raise LakeUnusable(
                ANOTHER.format(lake=note_text(noted or 0), store=hide_credentials(store), log=log.log_id)
            )
        if adopting or (noted is not None and epoch != log.log_epoch):
            _compare(reader, lake, log_extent.pruned_to, head)
    finally:
        reader.close()


def adopt(store: str, lake: Lake) -> int:
    """Record this log as the lake's origin if all common events are equal; returns the number compared."""
    head, log_extent = lake.head(), extent(store)
    require_same_log(store, lake, head, log_extent, adopting=True)
    lake.table(LOG).write_notes(origin_of(store).notes())
    return max(0, head - log_extent.pruned_to)


def require_same_model(lake: Lake, model: ShippedModel) -> None:
    """Refuse a model whose content differs from the one recorded for its version."""
    noted = lake.table(LOG).read_note(f"{MODEL}.{model.version}") if model.files else None
    if noted not in (None, number(model.digest)):
        raise ModelContentChanged(
            f"model version {model.version} has another content here (digest {model.digest[:12]}) than at the log "
            f"that this lake is a copy of (digest {note_text(noted or 0)}): name the right one by --model, or give "
            "this one a model_version of its own"
        )


def _compare(reader: LogReader, lake: Lake, since: int, upto: int) -> None:
    if since >= upto:
        return
    there = chain.from_iterable(read_range(reader, since, upto))
    for committed_id, hash in _hashes(lake, since, upto):
        record = next(there, None)
        if record is None or (record.committed_id, record.hash) != (committed_id, hash):
            raise Mismatch(
                f"event {committed_id} differs between the log and the lake: the lake is a copy of "
                "another log"
            )
    if next(there, None) is not None:
        raise Mismatch(
            f"the lake lacks events up to {upto} that it says it has: run `unisono lake audit` for details"
        )


def _hashes(lake: Lake, since: int, upto: int) -> Iterator[tuple[int, bytes]]:
    for batch in lake.scan_arrow(since=since, upto=upto, columns=("committed_id", "hash")):
        yield from zip(
            batch.column("committed_id").to_pylist(), batch.column("hash").to_pylist(), strict=True
        )
