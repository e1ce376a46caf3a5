"""What every message over a channel is."""

from __future__ import annotations

import msgspec


class ChannelStruct(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all values sent over a channel: a MessagePack array that starts with the class name."""
