"""`--verify`: compares the lake with the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unisono.cli.lake.command import LakeTarget

if TYPE_CHECKING:
    from unisono.lake.lake import Lake


def verify_copy(place: LakeTarget, spark: Any, store: str, target: Lake, since: int) -> None:
    from unisono.pipeline.compare import verify
    from unisono.pipeline.errors import Mismatch

    checked = verify(spark, store, target, since)
    for part in checked:
        if not part.equal:
            raise Mismatch(
                f"the lake differs from the log within events {part.since + 1} to {part.upto}: {part}"
            )
    rows = sum(part.log.rows for part in checked)
    place.say(f"verified {rows} events: both tables hold what the log holds")
