"""The other nodes of a cluster, as one authority sees them. An embedded log has none."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from unisono.ipc.messages import Claim, Submit
from unisono.model.load import load_files
from unisono.model.model import Model
from unisono.store.cluster import Cluster, ModelBundle, News

log = logging.getLogger("unisono.authority")


class ClusterView:
    """Asks the cluster where there is one, and says "nothing new" where there is none."""

    def __init__(
        self,
        cluster: Cluster | None,
        *,
        accept_init: bool = True,
        record: Callable[[ModelBundle | None], str | None] | None = None,
    ) -> None:
        """`record`: where an embedded log notes the model in force, for those who read it without the server and for
        the next start; it refuses another content of a version it knows, or tells the digest it had."""
        self._cluster = cluster
        self._accept_init = accept_init
        self._record = record

    @property
    def wake_fd(self) -> int | None:
        return None if self._cluster is None else self._cluster.wake_fd()

    def news(self, *, fresh: bool) -> News | None:
        """What other nodes did. `fresh`: ask the log itself, so that nothing acknowledged before is missing."""
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
        assert self._cluster is not None, "only a shared log can be lost and found again"
        self._cluster.reopen()

    def publish(self, model: Model) -> None:
        """Put a model into force on every node; ModelRefused when it is not newer than the one that is, or when the
        log knows another content of its version."""
        bundle = None
        if model.version is not None:
            bundle = ModelBundle(model.version, model.digest, dict(model.files))
        if self._cluster is not None and bundle is not None:
            self._cluster.publish_model(bundle)
        if self._record is not None:
            replaced = self._record(bundle)
            if replaced is not None:
                log.warning(
                    "model version %s has another content now (digest %s, before %s): snapshots of the former one "
                    "are not used, and states are folded anew",
                    model.version,
                    model.digest[:12],
                    replaced[:12],
                )

    def model_in_force(self) -> Model | None:
        """The model that some node put into force, loaded; None where there is none."""
        bundle = None if self._cluster is None else self._cluster.published_model()
        return None if bundle is None else load_files(bundle.files, accept_init=self._accept_init)


def settle_model(neighbours: ClusterView, own: Model, tell: Callable[[str], None]) -> Model:
    """The model a starting node judges by: its own if it is the newest, which then is in force everywhere.

    Two different models of one version cannot both be: ModelRefused.
    """
    present = neighbours.model_in_force()
    if present is None or present.version is None:
        neighbours.publish(own)
        return own
    if own.version is None or own.version < present.version:
        tell(f"using model version {present.version}, which another node has put into force")
        return present
    neighbours.publish(own)
    return own
