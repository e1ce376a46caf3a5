"""Which drafts go into the next submit: the oldest ones, and those of a transaction together or not at all."""

from __future__ import annotations

from itertools import chain, takewhile

from unisono.client.store.outbox import DraftRecord, Outbox
from unisono.client.sync.inputs_effects import SubmitNext, Submitted
from unisono.protocol.client_codec import ENVELOPE_BYTES, item_payload, submit_payload


def next_submit(outbox: Outbox, effect: SubmitNext) -> tuple[Submitted, bytes]:
    """The answer to SubmitNext, and the payload of the message; empty where nothing is to be sent."""
    if effect.only is not None and effect.only not in outbox.pending:
        return Submitted(gone=effect.only), b""
    if effect.only is not None:
        waiting = iter([outbox.pending[effect.only]])
    else:
        waiting = (draft for draft in outbox.pending.values() if draft.id not in effect.without)
    first = next(waiting, None)
    if first is None:
        return Submitted(), b""
    if first.batch is not None:
        return _transaction(outbox.transaction(first), effect)
    items: list[bytes] = []
    ids: list[str] = []
    size = ENVELOPE_BYTES
    for draft in chain([first], takewhile(lambda draft: draft.batch is None, waiting)):
        item = item_payload(draft.id, draft.partitions, draft.event)
        size += len(item) + 1
        if effect.bytes_max is not None and size > effect.bytes_max:
            if not items:
                return Submitted(too_large=draft.id), b""
            break
        items.append(item)
        ids.append(draft.id)
        if len(items) == effect.items_max:
            break
    return Submitted(tuple(ids)), submit_payload(items)


def _transaction(drafts: list[DraftRecord], effect: SubmitNext) -> tuple[Submitted, bytes]:
    """All drafts of a transaction that are pending; what the server has sent back already is committed."""
    ids = tuple(draft.id for draft in drafts)
    if not effect.atomic_max:
        return Submitted(unfit=ids, reason="atomic_unsupported"), b""
    if len(drafts) > effect.atomic_max:
        return Submitted(unfit=ids, reason="too_many_events"), b""
    payload = submit_payload(
        [item_payload(draft.id, draft.partitions, draft.event) for draft in drafts], atomic=True
    )
    if effect.bytes_max is not None and len(payload) + ENVELOPE_BYTES > effect.bytes_max:
        return Submitted(unfit=ids, reason="too_big"), b""
    return Submitted(ids, atomic=True), payload
