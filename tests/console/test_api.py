"""What the console answers about a real server: the log, partitions and their past, connections and the model."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.behaviour.server.harness import Closed, Server, item, tree_event
from tests.console.operator import Operator
from tests.lake.old_lakes import DATA as OLD_LAKES
from tests.waiting import until
from unisono.ipc.files import STATUS_FILE, PipelineStatus, write_pipeline_status
from unisono.samples import sample_model


def test_now_has_rates_bounds_and_processes(server: Server, ids: list[int], operator: Operator) -> None:
    now = operator.get("now")
    assert now["head"] >= ids[-1]
    assert now["ready"] is True
    assert set(now["processes"]) == {"authority", "reader", "front 0"}
    assert now["totals"]["commits"] >= len(ids)
    depths = {each["name"]: each for each in now["depths"]}
    assert depths["items waiting for judgement"]["bound"] == 20_000
    assert depths["partition states"]["value"] > 0
    until(lambda: len(operator.get("series")["time"]) >= 1, "no sample was taken")
    series = operator.get("series")
    assert {len(series[name]) for name in ("time", "commits", "broadcasts", "rejections", "p50", "p99")} == {
        len(series["time"])
    }


def test_events_are_listed_from_both_ends_and_filtered(ids: list[int], operator: Operator) -> None:
    newest = operator.get("events", partition="garden", limit=3)
    assert [each["committed_id"] for each in newest["events"]] == ids[:-4:-1]
    older = operator.get("events", partition="garden", before=newest["looked_to"])
    assert [each["committed_id"] for each in older["events"]] == ids[-4::-1]
    onward = operator.get("events", partition="garden", after=ids[0])
    assert [each["committed_id"] for each in onward["events"]] == ids[1:]
    assert onward["looked_to"] == onward["head"]
    moved = operator.get("events", type="treeMove", client="ann")["events"]
    assert [(each["committed_id"], each["item"], each["about"]) for each in moved] == [
        (ids[5], "n3", "outline")
    ]
    assert operator.get("events", client="nobody")["events"] == []
    assert operator.get("events", user="nobody")["events"] == []
    both = operator.get("events", partition="orchard")["events"]
    assert [each["partitions"] for each in both] == [["garden", "orchard"]] * 2


def test_an_event_is_shown_whole(ids: list[int], operator: Operator) -> None:
    event = operator.get("event", committed_id=ids[0])
    assert json.loads(event["event"]) == tree_event("n0", "outline", title="Bed 0")
    assert len(event["hash"]) == 64
    assert event["client_id"] == "ann"
    assert "no event" in operator.refused("event", 409, committed_id=10**9)


def test_the_path_of_an_event_has_times_while_somebody_looks(
    server: Server, ids: list[int], operator: Operator
) -> None:
    head = operator.get("events", limit=1)["head"]
    operator.get("times", after=head)  # from now on times are noted
    with server.client("reader") as reader, server.client("ann") as ann:
        reader.sync(["paths"], subscription_partitions=["paths"])
        single = ann.commit(["paths"], tree_event("s1", "outline", title="One"))
        batch = ann.submit(*(item(["paths"], tree_event(f"b{n}", "outline", title="b")) for n in range(3)))
        assert [each["committed_id"] for each in batch] == [single + 1, single + 2, single + 3]
        for _ in range(4):
            reader.expect("event_broadcast")
        alone = ann.commit(["nobody"], tree_event("s2", "outline", title="Two"))
    found = operator.get("times", after=head)
    groups = {group[0]: group for group in found["groups"]}
    noted = {entry[0]: entry for entry in found["fronts"]}
    assert [entry[:2] for entry in found["fronts"]] == [
        [single, single], [single + 1, single + 3], [alone, alone]
    ]  # fmt: skip
    assert [entry[4] for entry in found["fronts"]] == [1, 3, 0]
    for first in (single, single + 1, alone):
        _, _, _, begin_s, judge_s, commit_s, started_s = groups[first]
        _, _, submitted_s, delivered_s, _ = noted[first]
        durable_s = started_s + begin_s + judge_s + commit_s
        assert submitted_s < started_s < durable_s < delivered_s


def test_queries_and_reports_need_the_token_a_lake_and_a_page(
    server: Server, operator: Operator, tmp_path: Path
) -> None:
    asked = {"sql": "SELECT 1"}
    assert operator.send("POST", "/api/sql", asked, {}).status == 401
    assert operator.send("GET", "/reports/report", headers={}).status == 401
    assert operator.get("pipeline")["sql"]["lake"] is None
    refused = operator.send("POST", "/api/sql", asked)
    assert (refused.status, refused.json()["error"]) == (409, "this server has no lake")
    for wrong in ({}, {"sql": " "}, {"sql": "x" * 10_001}, {"sql": "SELECT 1", "lake": "/"}):
        assert operator.send("POST", "/api/sql", wrong).status == 400
    lake, out = tmp_path / "lake", tmp_path / "out"
    shutil.unpack_archive(OLD_LAKES / "layout-1.zip", lake)
    status = PipelineStatus(str(lake), "data", "host", 1, 0, 0, out=str(out))
    write_pipeline_status(server.data / STATUS_FILE, status)
    page = operator.login()
    try:
        assert operator.get("pipeline")["reports"] == []
        for name in ("report", "audit", "secret", ""):
            assert operator.send("GET", f"/reports/{name}", headers=page).status == 404
        (out / "report").mkdir(parents=True)
        (out / "report" / "index.html").write_text("<h1>R</h1>")
        assert [each["name"] for each in operator.get("pipeline")["reports"]] == ["report"]
        answer = operator.send("GET", "/reports/report", headers=page)
        assert (answer.status, answer.body) == (200, b"<h1>R</h1>")
        assert answer.headers["Content-Security-Policy"].startswith("sandbox; default-src 'none'")
        answer = operator.send("POST", "/api/sql", {"sql": "SELECT count(*) AS n FROM events"})
        assert (answer.status, answer.json()["rows"]) == (200, [["60"]])
        # One value that DuckDB's limit does not count: the process is limited, and the next query has another one.
        answer = operator.send("POST", "/api/sql", {"sql": "SELECT length(repeat('x', 3000000000))"})
        assert answer.status == 409, answer.body
        assert "memory" in answer.json()["error"].lower()
        assert operator.send("POST", "/api/sql", {"sql": "SELECT 1"}).status == 200
    finally:
        (server.data / STATUS_FILE).unlink()


def test_groups_have_times_and_refusals_have_examples(ids: list[int], operator: Operator) -> None:
    groups = operator.get("times", after=ids[0])["groups"]
    covered = {id for first, last, *_ in groups for id in range(first, last + 1)}
    assert set(ids[1:]) <= covered
    assert all(min(times) >= 0 for _, _, _, *times in groups)
    refusals = operator.get("refusals")["refusals"]
    (missing,) = [each for each in refusals if each["field"] == "event.payload.value.title"]
    assert (missing["reason"], missing["message"], missing["count"]) == (
        "validation_failed",
        "is required",
        2,
    )
    assert json.loads(missing["example"]["event"]) == tree_event("n9", "outline")


def test_partitions_have_sizes_snapshots_and_subscribers(
    server: Server, ids: list[int], operator: Operator
) -> None:
    with server.client("reader") as reader:
        reader.subscribe("garden")
        found = operator.get("partitions", prefix="gard")["partitions"]
        assert [(each["name"], each["events"], each["last"], each["subscribers"]) for each in found] == [
            ("garden", len(ids), ids[-1], 1)
        ]
    assert found[0]["snapshot"] is None
    assert operator.send("POST", "/orders/snapshot?partition=orchard").status == 200
    (orchard,) = operator.get("partitions", prefix="orchard")["partitions"]
    assert orchard["snapshot"] >= ids[-1]
    assert [each["name"] for each in operator.get("partitions", after="garden", prefix="")["partitions"]][
        :1
    ] != ["garden"]
    assert operator.get("partitions", prefix="nothing")["partitions"] == []


def test_the_past_of_a_partition(ids: list[int], operator: Operator) -> None:
    history = operator.get("history", partition="garden")
    assert history["ids"] == ids
    before = operator.get("state", partition="garden", at=ids[4])["value"]["tree"]["outline"]
    after = operator.get("state", partition="garden", at=ids[-1])["value"]["tree"]["outline"]
    assert [node["id"] for node in before["tree"]] == ["n4", "n3", "n2", "n1", "n0"]
    assert [node["id"] for node in after["tree"]] == ["n4", "n2", "n1", "n0"]
    assert before["items"]["n2"] == {"title": "Bed 2"}
    assert after["items"]["n2"] == {"title": "Herbs"}
    assert operator.get("state", partition="garden", at=0)["value"] == {"tree": {}, "data": {}}
    found = operator.get("difference", partition="garden", at=ids[4], then=ids[-1])["differences"]
    assert [(each["path"][2:], each["kind"], each["before"], each["after"]) for each in found] == [
        (["items", "n2", "title"], "value", '"Bed 2"', '"Herbs"'),
        (["tree", "n3"], "parent", '""', '"n1"'),
    ]


def test_why_a_value_is_so(ids: list[int], operator: Operator) -> None:
    path = ["tree", "outline", "items", "n2", "title"]
    why = operator.get("changes", partition="garden", at=ids[-1], path=json.dumps(path))
    assert why["value"] == "Herbs"
    assert [(each["event"]["committed_id"], each["before"], each["after"]) for each in why["changes"]] == [
        (ids[6], '"Bed 2"', '"Herbs"'),
        (ids[2], None, '"Bed 2"'),
    ]
    assert why["changes"][0]["event"]["client_id"] == "ann"
    earlier = operator.get("changes", partition="garden", at=ids[4], path=json.dumps(path))
    assert earlier["value"] == "Bed 2"
    place = operator.get(
        "changes", partition="garden", at=ids[-1], path=json.dumps(["tree", "outline"]), item="n3"
    )
    assert place["value"] == "n1"
    assert [each["event"]["committed_id"] for each in place["changes"]] == [ids[5], ids[3]]
    nothing = operator.get(
        "changes", partition="garden", at=ids[-1], path=json.dumps(["tree", "nowhere", "x"])
    )
    assert (nothing["value"], nothing["changes"]) == (None, [])


def test_why_a_value_of_canonical_events_is_so(server: Server, operator: Operator) -> None:
    def note(schema: str, **data: Any) -> dict[str, Any]:
        return {"type": "event", "payload": {"schema": schema, "data": data}}

    with server.client("cat", "canonical") as cat:
        added = cat.commit(["memo"], note("note.added", id="n", text="first"))
        edited = cat.commit(["memo"], note("note.edited", id="n", text="second"))
    state = operator.get("state", partition="memo", at=edited)["value"]["data"]
    (name,) = [key for key in state if "n" in state[key]]
    path = json.dumps(["data", name, "n", "text"])
    why = operator.get("changes", partition="memo", at=edited, path=path)
    assert [(each["event"]["committed_id"], each["after"]) for each in why["changes"]] == [
        (edited, '"second"'),
        (added, '"first"'),
    ]


def test_a_kick_ends_the_connection_and_is_in_the_log(server: Server, operator: Operator) -> None:
    with server.client("victim\n") as victim:
        listed = operator.get("connections")["connections"]
        assert "victim\n" in [each["client_id"] for each in listed]
        answer = operator.send("POST", "/api/kick", {"kind": "client", "name": "victim\n"})
        assert answer.status == 200
        try:
            while True:
                victim.receive()
        except Closed:
            pass
    assert "victim\\u000a kicked from 127.0.0.1" in server.log.read_text()
    wrong: list[Any] = [{"kind": "jti", "name": "x"}, {"kind": "client", "name": ""}, {"kind": "user"}, []]
    for body in wrong:
        assert operator.send("POST", "/api/kick", body).status == 400, body


def test_the_model_and_a_preview(ids: list[int], operator: Operator, tmp_path: Path) -> None:
    model = operator.get("model")
    assert model["model_version"] == 1
    assert model["schemas"]["note.added"]["reducer"] == "added"
    assert {"model.toml", "rules.py"} <= {file["name"] for file in model["files"]}
    newer = tmp_path / "model"
    shutil.copytree(sample_model(), newer)
    manifest = newer / "model.toml"
    manifest.write_text(manifest.read_text().replace("model_version = 1", "model_version = 2"))
    answer = operator.send("POST", "/api/preview", {"model": str(newer)})
    assert answer.status == 200, answer.body
    assert answer.json()["new_model_version"] == 2
    assert answer.json()["history"]["no_longer"] == 0
    assert operator.get("model")["model_version"] == 1
    missing = operator.send("POST", "/api/preview", {"model": str(tmp_path / "none")})
    assert missing.status == 409
    assert operator.send("POST", "/api/preview", {"model": ""}).status == 400


def test_malformed_requests_are_400(operator: Operator) -> None:
    for name, parameters in (
        ("events", {"after": "-1"}),
        ("events", {"after": "9" * 4000}),
        ("events", {"limit": 10_000}),
        ("events", {"partition": "x" * 5_000}),
        ("event", {}),
        ("state", {"partition": "garden", "at": "x"}),
        ("state", {"at": 1}),
        ("changes", {"partition": "garden", "at": 1, "path": "{}"}),
        ("changes", {"partition": "garden", "at": 1, "path": json.dumps(["x"] * 300)}),
        ("times", {"after": "²"}),
    ):
        operator.refused(name, 400, **parameters)


def test_many_requests_at_once_are_answered_or_refused(ids: list[int], operator: Operator) -> None:
    """Reads beyond the bound are refused at once; afterwards everything is as before."""
    statuses: list[int] = []
    barrier = threading.Barrier(48)

    def ask(number: int) -> int:
        barrier.wait()
        name = f"/api/state?partition=garden&at={ids[number % len(ids)]}" if number % 2 else "/api/events"
        return operator.send("GET", name).status

    with ThreadPoolExecutor(48) as pool:
        statuses = list(pool.map(ask, range(48)))
    assert set(statuses) <= {200, 503}
    assert 200 in statuses
    operator.get("now")


def test_a_killed_replay_process_is_replaced(server: Server, ids: list[int], operator: Operator) -> None:
    operator.get("history", partition="garden")
    (pid,) = [
        pid for pid in server.children() if b"replay_process" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]

    os.kill(pid, signal.SIGKILL)

    def answers() -> Any:
        return operator.send("GET", "/api/history?partition=garden").status == 200

    until(answers, "no new replay process was started")
    assert operator.get("history", partition="garden")["ids"] == ids


def test_an_orderly_end_leaves_no_write_ahead_log(tmp_path: Path) -> None:
    """Whatever the console has open is closed before the writer of the log is."""
    server = Server(tmp_path / "data", "--model", "open", "--access-default", "allow").start()
    try:
        operator = Operator(server)
        with server.client("ann") as ann:
            ann.commit(["p"], tree_event("n"))
        operator.get("events")
        operator.get("history", partition="p")
        assert server.stop() == 0
    finally:
        server.kill()
    assert not (server.data / "log.db-wal").exists()
