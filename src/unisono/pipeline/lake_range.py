"""Which committed ids a read of the lake has: all that are asked for, or an error."""

from __future__ import annotations

from unisono.pipeline.errors import NoSuchRange


def end_of_range(location: str, head: int, since: int, upto: int | None) -> int:
    """The last id of `(since, upto]` in a lake that ends at `head`; a range that is not all there is refused, as by a
    log."""
    if max(since, upto or 0) > head:
        wanted = f"events up to {upto}" if (upto or 0) > head else f"events after {since}"
        raise NoSuchRange(
            f"the lake at {location} ends at event {head}, {wanted} are requested: "
            "`unisono lake export` adds what the log has"
        )
    end = head if upto is None else upto
    if not 0 <= since <= end:
        raise NoSuchRange(f"({since}, {end}] is not a range: 0 <= from <= to must hold")
    return end
