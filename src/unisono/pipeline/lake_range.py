"""Which committed ids a read of the lake has: all that are asked for, or an error of the pipeline."""

from __future__ import annotations

from unisono.lake import lake
from unisono.lake.errors import OutsideLake
from unisono.pipeline.errors import NoSuchRange


def end_of_range(location: str, head: int, since: int, upto: int | None) -> int:
    """The last id of `(since, upto]` in a lake that ends at `head`; NoSuchRange for one that is not all there."""
    try:
        return lake.end_of_range(location, head, since, upto)
    except OutsideLake as error:
        raise NoSuchRange(str(error)) from None
