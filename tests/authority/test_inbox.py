"""The authority's inbox: what arrives is queued in order, and waiting for it costs next to nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from unisono.authority.inbox import SPIN_S, Inbox
from unisono.ipc.channel import Channel, ChannelClosed, socket_pair
from unisono.ipc.messages import AskHead


@contextmanager
def inbox() -> Iterator[tuple[Inbox, Channel, list[Channel]]]:
    near, far = socket_pair()
    inside, outside = Channel(near), Channel(far)
    ended: list[Channel] = []

    def disconnected(channel: Channel, _error: ChannelClosed) -> None:
        box.remove(channel)
        ended.append(channel)

    box = Inbox((inside,), None, disconnected)
    try:
        yield box, outside, ended
    finally:
        inside.close()
        outside.close()


def received(box: Inbox) -> list[int]:
    tickets = [message.ticket for _, message in box.queue if isinstance(message, AskHead)]
    box.queue.clear()
    return tickets


def test_messages_are_queued_in_order_however_they_are_waited_for() -> None:
    with inbox() as (box, front, _):
        for alone in (False, True, True, True):
            front.send([AskHead(1), AskHead(2)])
            front.send([AskHead(3)])
            box.collect(5.0, alone=alone)
            assert received(box) == [1, 2, 3]


def test_the_end_of_a_channel_is_noticed_while_it_looks_for_messages() -> None:
    with inbox() as (box, front, ended):
        front.send([AskHead(1)])
        box.collect(5.0)
        front.close()
        box.collect(5.0, alone=True)
        assert len(ended) == 1


def test_an_idle_inbox_sleeps() -> None:
    """It looks for messages once, for a short time, and only after they came fast."""
    with inbox() as (box, front, _):
        front.send([AskHead(1)])
        box.collect(5.0, alone=True)
        used = time.thread_time()
        for _ in range(10):
            box.collect(0.02, alone=True)
        assert time.thread_time() - used < 0.02 + SPIN_S
        assert received(box) == [1]
