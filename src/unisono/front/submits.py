"""From a submitted request to the authority: everything that can be refused here is, in the order of the rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unisono.front.backpressure import RETRY_MS
from unisono.front.intake import Intake, check_shape
from unisono.ipc.messages import Submit
from unisono.protocol.errors import BadRequest, RateLimited
from unisono.protocol.session import SubmitItems

if TYPE_CHECKING:
    from unisono.front.connection import ClientConnection


def submit_items(connection: ClientConnection, submit: SubmitItems, size: int) -> None:
    """Have items judged that came in a message of `size` bytes; a WireError refuses all of them (SUBMIT-01)."""
    services, identity, profile = connection.services, connection.identity, connection.session.profile
    assert identity is not None
    assert profile is not None
    settings, requests = services.settings, services.requests
    texts, named = check_shape(submit.items, settings, single=submit.single)
    count = len(texts)
    if connection.in_flight_items + count > settings.max_in_flight_drafts:
        raise RateLimited(f"more than {settings.max_in_flight_drafts} drafts in flight", RETRY_MS)
    requests.check_submit(identity.principal, count, size)
    if connection.intake is None:
        connection.intake = Intake(identity, services.access, settings.max_message_bytes)
    items, written = connection.intake.prepare(submit.items, texts, named)
    if count > 1 and written > settings.max_message_bytes:
        raise BadRequest(
            f"the events of this request have {written} bytes in canonical form,"
            f" at most {settings.max_message_bytes} are allowed; send them in several requests"
        )
    connection.in_flight_items += count
    requests.submit(
        Submit(
            connection.number,
            identity.client_id,
            profile,
            submit.single,
            items,
            written,
            identity.author,
            submit.atomic,
        ),
        max(size, written),
    )
