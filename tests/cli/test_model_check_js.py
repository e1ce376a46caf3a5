"""`unisono model check --js`: reducers in JavaScript beside those in Python, on example events and on a log."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.behaviour.server.planting import plant, record
from tests.cli.test_model_check import check, note, write_model
from unisono.samples import sample_model

OUTLINE = """
const without = (object, key) => Object.fromEntries(Object.entries(object).filter(([name]) => name !== key));

export default {
  "note.added": (state, { data: { id, text, tags = [] } }) => {
    return { ...state, notes: { ...state.notes, [id]: { text, tags } } };
  },
  "note.edited": (state, { data }) => {
    const note = { ...state.notes[data.id], ...without(data, "id") };
    return { ...state, notes: { ...state.notes, [data.id]: note } };
  },
  "note.removed": (state, { data }) => ({ ...state, notes: without(state.notes, data.id) }),
  "outline.renamed": (state, { data }) => ({ ...state, title: data.title }),
};
"""


def _outline(path: Path, **changed: str) -> Path:
    text = OUTLINE
    for before, after in changed.items():
        assert before in text
        text = text.replace(before, after)
    path.write_text(text)
    return path


@pytest.mark.req("VAL-05")
def test_reducers_that_agree_and_that_do_not(tmp_path: Path) -> None:
    model = sample_model("outline")
    done = check(model, "--js", _outline(tmp_path / "good.mjs"))
    assert done.returncode == 0, done.stdout
    assert "good.mjs: the same states, 5 event(s) in 1 partition(s)" in done.stdout
    done = check(model, "--js", _outline(tmp_path / "bad.mjs", title="name"))
    assert done.returncode == 1
    assert "(outline.renamed) leaves other states in" in done.stdout
    assert '["title"' in done.stdout or "title" in done.stdout
    missing = tmp_path / "missing.mjs"
    missing.write_text('export default { "note.added": (state) => state };')
    done = check(model, "--js", missing)
    assert done.returncode == 1
    assert "outline.renamed: has no function here, and is reduced in Python" in done.stdout
    broken = tmp_path / "broken.mjs"
    broken.write_text("export default 7;")
    done = check(model, "--js", broken)
    assert done.returncode == 1
    assert "export default an object of functions, by schema" in done.stderr


@pytest.mark.req("VAL-05")
def test_a_function_that_changes_its_state_is_found_on_a_log(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", reduce='state.setdefault("list", []).append(event.data)')
    records = [record(number, ["p" if number % 2 else "q"], note(number)) for number in range(1, 41)]
    plant(tmp_path / "data", records)
    good = tmp_path / "good.mjs"
    good.write_text(
        "export default { note: (state, { data }) => ({ ...state, list: [...(state.list ?? []), data] }) };"
    )
    done = check(model, "--data", tmp_path / "data", "--js", good, "--quiet")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "good.mjs: the same states, 40 event(s) in 2 partition(s)" in done.stdout
    bad = tmp_path / "bad.mjs"
    bad.write_text(
        """export default { note: (state, { data }) => {
          if (data > 20) { state.list.push(data); return state; }
          return { ...state, list: [...(state.list ?? []), data] };
        } };"""
    )
    done = check(model, "--data", tmp_path / "data", "--js", bad, "--quiet")
    assert done.returncode == 1
    assert "event 21 (note) leaves other states in 'p', at list" in done.stdout
