"""Another model while the authority runs: all of it between two groups, or nothing and the reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from tests.authority.logs import GatedLog, grow
from tests.authority.models import RULES, counting_model, write_model
from tests.authority.seat import Caller, Seat, candidate, note, reading, results_of, seated, seated_on
from unisono.authority.cluster_view import ClusterView
from unisono.ipc.messages import AdminCommand, BatchOutcome, CommandResult, ModelChanged
from unisono.model.load import load_model
from unisono.model.model import CANONICAL, COMPATIBILITY, Model
from unisono.model.pack import unpack
from unisono.store.port import Opening
from unisono.store.sqlite.log import SqliteLog


@pytest.fixture
def seat(tmp_path: Path) -> Iterator[Seat[SqliteLog]]:
    with seated(tmp_path / "data", counting_model(tmp_path / "model", 2), fronts=2) as seat:
        yield seat


def count(caller: Caller, times: int = 1) -> None:
    for _ in range(times):
        assert caller.submit(candidate(["p"], note("counted")), profile=CANONICAL)[0].status == "committed"


def counted(caller: Caller) -> int:
    """What the model in force has counted in `p`, from its refusal."""
    (result,) = caller.submit(candidate(["p"], note("counted", limit=0)), profile=CANONICAL)
    assert result.errors is not None
    return int(result.errors[0].message.split()[-1])


@pytest.mark.req("MODEL-02", "MODEL-03")
def test_a_new_model_is_told_to_every_front_and_judges_the_whole_log_anew(
    seat: Seat[SqliteLog], tmp_path: Path
) -> None:
    caller = seat.front.connect()
    count(caller, 3)
    assert counted(caller) == 6
    assert seat.command("snapshot", "p")[0]
    ok, answer = seat.command("reload", str(write_model(tmp_path / "next", 5)))
    assert ok, answer
    assert (answer["old_model_version"], answer["new_model_version"]) == (2, 5)
    assert answer["changes"]["model_version"] == {"before": 2, "after": 5}
    for front in seat.fronts:
        changed = front.of(ModelChanged)
        assert (changed.old_model_version, changed.offer.model_version, changed.offer.head) == (2, 5, 3)
        assert changed.offer.profiles.keys() == {CANONICAL, COMPATIBILITY}
    assert seat.stats().gauges["states_resident"] == 0
    assert counted(caller) == 15, "not from the old model's snapshot, not from its state"
    count(caller)
    assert counted(caller) == 20
    assert seat.command("snapshot", "p")[0]
    with reading(tmp_path / "data") as log:
        for version, expected in ((2, 6), (5, 20)):
            place = tmp_path / ("model" if version == 2 else "next")
            snapshot = log.snapshot("p", version, load_model(place).digest)
            assert snapshot is not None
            assert unpack(snapshot.state)["data"] == {"count": expected}


@pytest.mark.req("MODEL-02")
def test_it_switches_between_two_groups(seat: Seat[SqliteLog], tmp_path: Path) -> None:
    """Every answer before the change is the old model's, every answer after it the new one's."""
    callers = [seat.front.connect() for _ in range(3)]
    count(callers[0])
    place = str(write_model(tmp_path / "next", 3))
    probe = note("counted", limit=0)
    for number in range(120):
        callers[number % 3].send(candidate(["p"], probe), candidate(["p"], probe), profile=CANONICAL)
        if number == 60:
            seat.node.send(AdminCommand(1, "reload", place))
    assert seat.node.of(CommandResult).ok
    for number in range(30):
        callers[number % 3].send(candidate(["p"], probe), profile=CANONICAL)
    for number in range(150):
        callers[number % 3].results()
    said, version = [], 2
    for message in seat.front.received:
        if isinstance(message, ModelChanged):
            version = 3
        elif isinstance(message, BatchOutcome):
            for result in results_of(message):
                if result.errors is not None:
                    said.append(result.errors[0].message == f"version {version} counts {version}")
    assert said == [True] * 270
    assert version == 3


@pytest.mark.req("MODEL-01", "MODEL-02")
def test_a_model_that_cannot_be_used_leaves_the_old_one_in_force(
    seat: Seat[SqliteLog], tmp_path: Path
) -> None:
    caller = seat.front.connect()
    count(caller)
    broken = write_model(tmp_path / "broken", 9, RULES + "\nnonsense = undefined\n")
    unschooled = write_model(tmp_path / "unschooled", 9)
    (unschooled / "schemas" / "counted.json").write_text('{"type": "no such type"}')
    refusals = {
        str(write_model(tmp_path / "equal", 2)): "model_version 2 is not above 2",
        str(write_model(tmp_path / "lower", 1)): "model_version 1 is not above 2",
        str(broken): "NameError: name 'undefined' is not defined",
        str(unschooled): "schemas/counted.json",
        str(tmp_path / "nowhere"): "is not a directory",
        "\x00": "is not a directory",
    }
    for place, reason in refusals.items():
        ok, answer = seat.command("reload", place)
        assert not ok
        assert reason in answer["error"]
        count(caller)
    assert counted(caller) == 2 * (1 + len(refusals))
    assert not [m for front in seat.fronts for m in front.received if isinstance(m, ModelChanged)]
    assert seat.command("reload", str(write_model(tmp_path / "higher", 3)))[0], (
        "and a good one is taken still"
    )


def test_a_server_without_a_versioned_model_has_none_to_reload(tmp_path: Path) -> None:
    place = write_model(tmp_path / "model", 1)
    with seated(tmp_path / "data") as seat:
        for argument in (str(place), ""):
            ok, answer = seat.command("reload", argument)
            assert not ok
            assert "--model" in answer["error"]


def test_an_unknown_order_is_refused(seat: Seat[SqliteLog]) -> None:
    assert seat.command("dance", "") == (False, {"error": "unknown command 'dance'"})


class SharedLog(SqliteLog):
    """A log that says which model is in force elsewhere, as one shared by several nodes does."""

    in_force: int | None = None

    def begin(self, ids: Sequence[str]) -> Opening:
        return msgspec.structs.replace(super().begin(ids), model_version=self.in_force)


class Elsewhere(ClusterView):
    """Other nodes, which have put a model into force."""

    def __init__(self, model: Model) -> None:
        super().__init__(None)
        self._model = model

    def published_model(self) -> Model:
        return self._model


@pytest.mark.req("MODEL-02", "SUBMIT-09")
def test_a_model_of_another_node_leaves_the_order_of_requests_as_it_is(tmp_path: Path) -> None:
    log = SharedLog.open(tmp_path / "data")
    grow(log, "long", 5_000)
    elsewhere = Elsewhere(counting_model(tmp_path / "next", 3))
    with seated_on(log, counting_model(tmp_path / "model", 2), cluster=elsewhere) as seat:
        caller, other = seat.front.connect(), seat.front.connect()
        log.in_force = 3
        places = ["p", "long", "p", "q", "long", "p"]
        items = [candidate([place], note("counted")) for place in places]
        seat.front.send(
            *(caller.request(item, profile=CANONICAL) for item in items[:3]),
            other.request(candidate(["p"], note("counted")), profile=CANONICAL),
            *(caller.request(item, profile=CANONICAL) for item in items[3:]),
        )
        assert [caller.results()[0].id for _ in items] == [item.id for item in items]
        assert other.results()[0].status == "committed"
        assert seat.front.of(ModelChanged).offer.model_version == 3
        assert counted(caller) == 4 * 3


@pytest.mark.req("MODEL-02", "SUBMIT-09")
def test_who_waits_for_a_state_is_judged_by_the_new_model(tmp_path: Path) -> None:
    log = GatedLog.open(tmp_path / "data")
    grow(log, "p", 10_000)
    with seated_on(log, counting_model(tmp_path / "model", 2)) as seat:
        caller, other = seat.front.connect(), seat.front.connect()
        place = str(write_model(tmp_path / "next", 3))
        items = [candidate(["p"], note("counted", limit=limit)) for limit in (1, 1, 4)]
        log.gate.shut()
        seat.front.send(
            *(caller.request(item, profile=CANONICAL) for item in items),
            other.request(candidate(["q"], note("counted")), profile=CANONICAL),
        )
        log.gate.wait_reached()  # with what needs no loading; the others wait, and now the order comes
        seat.node.send(AdminCommand(1, "reload", place))
        log.gate.open()
        assert other.results()[0].status == "committed"
        assert seat.node.of(CommandResult).ok
        results = [caller.results()[0] for _ in items]
        assert [result.id for result in results] == [item.id for item in items]
        assert [result.status for result in results] == ["committed", "rejected", "committed"]
        changed = next(n for n, m in enumerate(seat.front.received) if isinstance(m, ModelChanged))
        answers = [
            n
            for n, m in enumerate(seat.front.received)
            if isinstance(m, BatchOutcome) and m.conn == caller.conn
        ]
        assert changed < min(answers)
