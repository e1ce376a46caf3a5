"""A shared log ends a group that takes too long: an event that cannot be judged in time must not come for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.authority.endless import write_endless_model
from tests.behaviour.nodes.cluster import SERVE
from tests.behaviour.server.harness import item, running
from tests.behaviour.server.test_costs import event
from tests.store.postgres.server import shared_server


@pytest.mark.req("LIM-07", "DUR-04", "SUBMIT-04")
def test_what_cannot_be_judged_within_a_groups_time_is_answered(tmp_path: Path) -> None:
    model = write_endless_model(tmp_path / "model")
    options = (
        "--store", shared_server().create(), "--node-name", "a", *SERVE, "--model", str(model),
        "--store-group-timeout-s", "2", "--rule-timeout-s", "0.3",
    )  # fmt: skip
    with (
        running(tmp_path / "a", *options) as server,
        server.client("c", "canonical") as peer,
        server.client("other", "canonical") as other,
    ):
        first, endless, last = peer.submit(
            item(["p"], event("counts")), item(["p", "q"], event("loops")), item(["p"], event("counts"))
        )
        assert (first["status"], endless["status"], last["status"]) == ("committed", "rejected", "committed")
        assert "rule_timeout_s" in endless["errors"][0]["message"]
        # Longer than a group may take in all, each of them within its limit: the request goes on in other groups.
        slow = [item(["p"], event("lingers", for_s=0.15)) for _ in range(25)]
        peer.send("submit_events", {"events": slow})
        other.commit(["q"], event("counts"))
        results = peer.expect("submit_events_result", timeout_s=60)["results"]
        assert [result["status"] for result in results] == ["committed"] * 25
        assert [result["id"] for result in results] == [each["id"] for each in slow]
        ids = [result["committed_id"] for result in results]
        assert ids == sorted(ids)
        assert len(peer.history(["p"])) == 27
        assert server.metric("unisono_store_reachable") == 1
        assert "database unavailable" not in server.log.read_text()
