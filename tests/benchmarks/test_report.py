"""Medians, ratios, tables, pictures, and the section of the page that a run replaces."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from benchmarks.comparison.measure import GeneratorFailed, Sample, combined, percentile
from benchmarks.comparison.peers import PAGE, chosen_systems
from benchmarks.comparison.pictures import draw
from benchmarks.comparison.report import BEGIN, END, markdown, number, replaced, times
from benchmarks.comparison.results import Row, Run, Table, ratio, spread
from benchmarks.comparison.rounds import Contender, play
from benchmarks.comparison.workloads import FLOOR, JUDGING, OPEN, all_systems
from benchmarks.generators.order import Counted


def row(name: str, *rates: float, cores: float = 0.2, p50: float = 2.0) -> Row:
    return Row(name, [Sample(rate, p50, p50 * 2, p50 * 3, cores, 0.5) for rate in rates])


def a_run() -> Run:
    submits = Table("submit-50", "Submits", "events/s", [row(OPEN, 900, 800), row(JUDGING, 720, 640),
                    row("UmaDB", 600, 400), Row("NATS JetStream", [], "failed: gone")])  # fmt: skip
    alone = Table("submit-1", "Lone submits", "events/s", [row(OPEN, 100, p50=3.0), row(FLOOR, 200, p50=2.0)])
    fan_out = Table(
        "fan-out", "Fan-out", "deliveries/s", [Row(OPEN, [Sample(5e5, generator_cores=0.9, server_cores=1)])]
    )
    return Run("2026-01-01", "a machine", {OPEN: "1"}, 2, 1.0, [alone, submits, fan_out], ["a note"])


def test_percentiles_are_values_that_were_measured() -> None:
    assert percentile([], 0.5) == 0
    assert percentile([7], 0.99) == 7
    hundred = list(range(100))
    assert [percentile(hundred, part) for part in (0.0, 0.5, 0.9, 0.99, 1.0)] == [0, 50, 90, 99, 99]


def test_generators_add_up() -> None:
    found = combined([Counted(100, 2.0, 0.1, [1000, 3000]), Counted(50, 0.5, 0.1, [2000])], 0.7, 1.1)
    assert found == Sample(150.0, 2.0, 3.0, 3.0, 0.7, 1.1)


def test_a_ratio_is_of_rounds_and_not_of_medians() -> None:
    """The second round was slow for both of them."""
    assert ratio(row("a", 100, 10, 90), row("b", 50, 5, 30)) == 2.0
    assert ratio(row("a", 100, 10), row("b", 50)) == 2.0
    assert ratio(row("a", 100), Row("b", [])) is None
    assert ratio(row("a", 100), row("b", 0)) is None
    assert ratio(row("a", 1, p50=3.0), row("b", 1, p50=2.0), "p50_ms") == 1.5
    assert row("a", 100, 10, 90).rate == 90
    assert spread(row("a", 100, 10, 90)) == 10


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.5123, "0.512"), (99.96, "100"), (123456, "123,000"), (12.34, "12.3")]
)
def test_numbers_have_three_digits_that_count(value: float, text: str) -> None:
    assert number(value) == text


def test_ratios_come_first_and_every_workload_has_its_table() -> None:
    text = markdown(a_run(), [("pictures/x.svg", "a picture")])
    lines = text.splitlines()
    assert lines.index(f"| judging model, to the open model | {times(0.8)} | more |") < lines.index(
        "![a picture](pictures/x.svg)"
    )
    assert f"| durable submits, 50 connections, to UmaDB | {times(1.75)} | more |" in lines
    assert f"| p50 of 1 connection, to one fdatasync and one echo | {times(1.5)} | less |" in lines
    assert f"| p99 to p50, 50 connections | {times(3.0)} | less |" in lines
    assert "the same, to NATS JetStream" not in text
    assert "| NATS JetStream | failed: gone | | | | | |" in lines
    assert f"| UmaDB | 500 | {times(0.583)} | 2 | 6 | 0.50 | 0.20 |" in lines
    assert f"| {OPEN} | 500,000 | {times(1)} | 1.00 | 0.90 (its limit) |" in lines
    assert lines[-1] == "- a note"
    widths = {line.count("|") for line in lines if line.startswith(f"| {OPEN} | ")}
    assert widths == {6, 8}


def test_a_run_replaces_the_section_between_the_markers_and_nothing_else() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    once = replaced(page, "new")
    assert once == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    assert replaced(once, "new") == once
    for bad in ("", f"{BEGIN}", f"{END}\n{BEGIN}", page + page):
        with pytest.raises(ValueError, match="needs one line"):
            replaced(bad, "new")
    assert replaced(PAGE.read_text("utf-8"), "new").count("\nnew\n") == 1


def test_pictures_are_files_of_their_own(tmp_path: Path) -> None:
    drawn = draw(a_run(), tmp_path)
    assert [name for name, _ in drawn] == ["submit-1.svg", "latency-1.svg", "submit-50.svg", "fan-out.svg"]
    for name, label in drawn:
        root = ElementTree.parse(tmp_path / name).getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert float(root.attrib["width"]) > 100
        assert root.attrib["aria-label"] == label
    assert FLOOR in (tmp_path / "latency-1.svg").read_text()
    assert FLOOR not in (tmp_path / "submit-1.svg").read_text()


def test_results_are_read_back_as_they_were_kept() -> None:
    assert msgspec.json.decode(msgspec.json.encode(a_run()), type=Run) == a_run()


def test_rounds_go_to_and_fro_and_go_on_without_whoever_fails() -> None:
    turns: list[str] = []

    def contender(name: str, fails_in: int = -1) -> Contender:
        def run(round_number: int) -> Sample:
            turns.append(name)
            if round_number == fails_in:
                raise GeneratorFailed("first line\nthe reason")
            return Sample(1.0)

        return Contender(name, run)

    table = play("key", "title", "events/s", [contender("a"), contender("b", fails_in=1), contender("c")], 3)
    assert "".join(turns) == "abc" + "cba" + "ac"
    assert [len(one.samples) for one in table.rows] == [3, 1, 3]
    assert table.rows[1].note == "failed: the reason"


def test_systems_are_chosen_by_a_part_of_their_names() -> None:
    everything = all_systems()
    assert list(chosen_systems(everything, None)) == list(everything)
    assert list(chosen_systems(everything, "uma, nats")) == ["UmaDB", "NATS JetStream"]
    assert list(chosen_systems(everything, "open model")) == [OPEN]
