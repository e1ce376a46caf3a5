"""Components: what hangs together by ids or partitions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from unisono.pipeline.jobs.import_.judge import Components


@given(st.lists(st.lists(st.integers(0, 30), min_size=2, max_size=4), max_size=25))
def test_components_are_what_hangs_together(links: list[list[int]]) -> None:
    found = Components()
    for link in links:
        found.link(link)
    leaders = found.leaders()
    reached = {number: {number} for link in links for number in link}
    for _ in range(len(reached)):
        for link in links:
            together = set().union(*(reached[number] for number in link))
            for number in together:
                reached[number] = reached[number] | together
    assert leaders == {number: min(group) for number, group in reached.items()}
