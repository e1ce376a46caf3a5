"""The other nodes of a cluster. An embedded log has none."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence

import msgspec

from unisono.ipc.messages import (
    AccessChanged,
    Claim,
    ListConnections,
    ListedConnections,
    PresenceChange,
    Submit,
)
from unisono.model.load import load_files
from unisono.model.model import Model
from unisono.store.cluster import Cluster, ModelBundle, News

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(PresenceChange | AccessChanged | ListConnections | ListedConnections).decode

logger = logging.getLogger("unisono.authority")


class Heard(msgspec.Struct):
    """What other nodes sent. `for_node`: for this node's own process."""

    presence: list[PresenceChange] = []
    access: list[AccessChanged] = []
    for_node: list[ListConnections | ListedConnections] = []


class ClusterView:
    """The cluster if there is one; without one, every call does nothing."""

    def __init__(
        self,
        cluster: Cluster | None,
        *,
        accept_init: bool = True,
        record_model: Callable[[ModelBundle | None], str | None] | None = None,
    ) -> None:
        """`record_model` stores the model in force in an embedded log, for offline readers and for the next start. It
        raises ModelRefused for a known version with another content, or returns the digest that it replaced."""
        self._cluster = cluster
        self._accept_init = accept_init
        self._record_model = record_model

    @property
    def wake_fd(self) -> int | None:
        return None if self._cluster is None else self._cluster.wake_fd()

    @property
    def shared(self) -> bool:
        """Whether there may be other nodes."""
        return self._cluster is not None

    def tell_presence(self, changes: Sequence[PresenceChange]) -> None:
        """Tell other nodes of presence that changed on this one."""
        if self._cluster is not None:
            self._cluster.tell([_encode(change) for change in changes])

    def tell(self, message: AccessChanged | ListConnections | ListedConnections) -> None:
        """Tell other nodes something."""
        if self._cluster is not None:
            self._cluster.tell([_encode(message)])

    def heard(self, messages: Sequence[bytes]) -> Heard:
        """What other nodes sent; what cannot be read is left out."""
        heard = Heard()
        for each in messages:
            with contextlib.suppress(msgspec.MsgspecError):
                match _decode(each):
                    case PresenceChange() as change:
                        heard.presence.append(change)
                    case AccessChanged() as change:
                        heard.access.append(change)
                    case message:
                        heard.for_node.append(message)
        return heard

    def connected_clients(self, limit: int) -> Sequence[tuple[str, str]] | None:
        """(client_id, node) of all nodes; None where there are no others."""
        return None if self._cluster is None else self._cluster.connected_clients(limit)

    def news(self, *, fresh: bool) -> News | None:
        """What other nodes did. `fresh`: ask the log itself, so that nothing committed before the call is missing."""
        return None if self._cluster is None else self._cluster.catch_up(fresh=fresh)

    def claim(self, claims: Sequence[Claim]) -> None:
        if self._cluster is not None and claims:
            self._cluster.claim_many([(claim.client_id, claim.conn) for claim in claims])

    def release(self, client_id: str, conn: int) -> None:
        if self._cluster is not None:
            self._cluster.release(client_id, conn)

    def fence(self, submits: Sequence[Submit]) -> None:
        if self._cluster is not None:
            self._cluster.fence([*{(submit.client_id, submit.conn) for submit in submits}])

    def reopen(self) -> None:
        assert self._cluster is not None, "only a shared log can be reopened"
        self._cluster.reopen()

    def publish(self, model: Model) -> None:
        """Put a model into force on every node.

        Raises ModelRefused when it is not newer than the one in force, or when the log knows its version with another
        content.
        """
        bundle = None
        if model.version is not None:
            bundle = ModelBundle(model.version, model.digest, dict(model.files))
        if self._cluster is not None and bundle is not None:
            self._cluster.publish_model(bundle)
        if self._record_model is not None:
            replaced = self._record_model(bundle)
            if replaced is not None:
                logger.warning(
                    "content of model version %s changed (digest %s, before %s): its snapshots are ignored, "
                    "states are replayed from all events",
                    model.version,
                    model.digest[:12],
                    replaced[:12],
                    extra={"model_version": model.version},
                )

    def published_model(self) -> Model | None:
        """The newest model that any node has published, loaded; None if there is none."""
        bundle = None if self._cluster is None else self._cluster.published_model()
        return None if bundle is None else load_files(bundle.files, accept_init=self._accept_init)


def choose_model(cluster: ClusterView, own: Model) -> Model:
    """The model of a starting node: its own, which is published, unless the cluster has a newer one.

    Raises ModelRefused when the cluster has the same version with another content.
    """
    published = cluster.published_model()
    if (
        published is None
        or published.version is None
        or (own.version is not None and own.version >= published.version)
    ):
        cluster.publish(own)
        return own
    version = published.version
    logger.warning(
        "using model version %d, published by another node", version, extra={"model_version": version}
    )
    return published
