"""Every page of the console in a real Chromium, while a client submits: what it shows, and that it can be used."""

from __future__ import annotations

import contextlib
import re
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.behaviour.server.harness import Closed, Peer, Server, item
from tests.console.conftest import HOSTILE
from tests.console.operator import Operator
from tests.js.browser import chromium
from tests.js.node import CLIENTS
from tests.lake.old_lakes import DATA as OLD_LAKES
from tests.waiting import PATIENCE_S
from unisono.console.links import console_link
from unisono.ipc.files import STATUS_FILE, PipelineStatus, StageStatus, write_pipeline_status

AXE = CLIENTS / "node_modules/axe-core/axe.min.js"
PAGES = ("now", "log", "partitions", "partition?name=garden", "connections", "model", "pipeline")
SIZES = ((1280, "light"), (360, "dark"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def load(server: Server, ids: list[int]) -> Iterator[None]:
    """A client that adds notes, some of them refused, until the tests are over."""
    over = threading.Event()

    def submit() -> None:
        with server.client("bot", "canonical") as bot, server.client("reader", "canonical") as reader:
            reader.sync(["notes"], subscription_partitions=["notes"])
            number = 0
            while not over.wait(0.03):
                number += 1
                note = {"id": f"note-{number}", "text": HOSTILE}
                event = {"type": "event", "payload": {"schema": "note.added", "data": note}}
                bot.submit(item(["notes"], event))
                reader.expect("event_broadcast")
                wrong = {"type": "event", "payload": {"schema": "note.added", "data": {"id": number}}}
                bot.submit(item(["notes"], wrong))

    thread = threading.Thread(target=submit)
    thread.start()
    yield
    over.set()
    thread.join()


@contextlib.contextmanager
def window(
    browser: Browser, server: Server, width: int = 1280, scheme: str = "light"
) -> Iterator[tuple[Page, list[str]]]:
    """A logged-in page, and what its scripts complained about; there must be nothing at the end."""
    context = browser.new_context(viewport={"width": width, "height": 850}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.set_default_timeout(PATIENCE_S * 1000)
    page.goto(console_link(server.data))
    page.get_by_role("heading", name="Now", level=1).wait_for()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if said.type in ("error", "warning") else None)
    try:
        yield page, errors
        # A browser reports every answer that is an error; 401 is what leads to the login page.
        assert [each for each in errors if "status of 401" not in each] == []
        assert "owned" not in page.title()
    finally:
        context.close()


def until_closed(peer: Peer) -> int | None:
    """The code with which the server closes it, whatever it says before."""
    try:
        while True:
            peer.receive()
    except Closed as closed:
        return closed.code


def show(page: Page, name: str) -> None:
    page.evaluate("(name) => { location.hash = `#/${name}`; }", name)


def findings(page: Page) -> list[str]:
    """What axe-core finds serious or worse."""
    found = page.evaluate("() => axe.run(document, { resultTypes: ['violations'] })")
    return [
        f"{each['id']}: {each['nodes'][0]['html'][:200]}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
    ]


LOADED: dict[str, str] = {
    "now": ".tile-value",
    "log": "table.log tbody tr",
    "partitions": "tbody th",
    "partition?name=garden": ".tree .node",
    "connections": "tbody tr",
    "model": "tbody tr",
    "pipeline": ".page-pipeline > *",
}


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_every_page_fits_and_axe_finds_nothing_serious(
    browser: Browser, server: Server, load: None, width: int, scheme: str
) -> None:
    if not AXE.exists():
        pytest.fail("clients/js/node_modules is not installed: run `make setup-js`")
    with window(browser, server, width, scheme) as (page, _):
        # Not by a script element, which the policy of the page forbids.
        page.evaluate(AXE.read_text("utf-8"))
        for name in PAGES:
            show(page, name)
            page.locator(LOADED[name]).first.wait_for()
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} is too wide"
            assert findings(page) == [], name


def test_a_token_in_the_address_is_used_once_and_removed(browser: Browser, server: Server) -> None:
    with window(browser, server) as (page, _):
        assert page.url == f"{server.admin}/"
        cookies = page.context.cookies()
        assert [(each["httpOnly"], each["sameSite"]) for each in cookies] == [(True, "Strict")]
        page.get_by_role("button", name="Log out").click()
        page.get_by_label("Admin token").wait_for()
        assert page.context.cookies() == []


def test_a_wrong_token_is_refused_and_the_right_one_typed(
    browser: Browser, server: Server, operator: Operator
) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(server.admin)
    page.get_by_label("Admin token").fill("wrong")
    page.keyboard.press("Enter")
    page.get_by_role("alert").filter(has_text="not the admin token").wait_for()
    page.get_by_label("Admin token").fill(operator.token)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Now", level=1).wait_for()
    context.close()


def test_now_shows_rates_and_charts(browser: Browser, server: Server, load: None) -> None:
    with window(browser, server) as (page, _):
        page.locator(".tile", has_text="Head of the log").wait_for()
        page.locator(".u-over").first.wait_for()
        assert page.locator(".chart canvas").count() == 2
        commits = page.locator(".tile", has_text="Commits").locator(".tile-value")
        expect(commits).to_have_text(re.compile("[1-9]"), timeout=30_000)  # tiles are drawn again each second
        assert page.locator("meter").count() == 5


def test_the_log_lives_pauses_filters_and_opens_events(
    browser: Browser, server: Server, ids: list[int], load: None
) -> None:
    with window(browser, server) as (page, _):
        show(page, "log")
        rows = page.locator("table.log tbody tr")
        rows.first.wait_for()
        first = rows.first.get_attribute("data-id")
        page.wait_for_function(
            "(id) => document.querySelector('table.log tbody tr').dataset.id !== id", arg=first
        )
        timed = page.locator("table.log tr.timed").first
        timed.wait_for()
        path = [timed.locator(f".{step}").inner_text() for step in ("judged", "since", "delivered")]
        assert all(re.fullmatch(r"\+[\d.,]+ ms", step) for step in path), path
        page.get_by_role("button", name="Pause").click()
        paused = page.get_by_role("button", name="Resume")
        assert paused.get_attribute("aria-pressed") == "true"
        page.get_by_label("Partition").fill("garden")
        page.get_by_label("Type").fill("treeMove")
        paused.click()
        page.get_by_role("button", name="Filter").click()
        expect(rows).to_have_count(1)
        page.get_by_role("button", name=f"Open event {ids[5]}").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_text('"treeMove"').wait_for()
        assert "ann" in dialog.inner_text()
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
        refusal = page.locator("details.refusal", has_text="event.payload.data.id").first
        refusal.locator("summary").click()
        refusal.locator("pre").wait_for()
        assert "note.added" in refusal.inner_text()


def test_the_past_of_a_partition_with_the_keyboard(
    browser: Browser, server: Server, ids: list[int], load: None
) -> None:
    with window(browser, server) as (page, _):
        show(page, "partitions")
        page.get_by_label("Name begins with").fill("gar")
        page.keyboard.press("Enter")
        page.get_by_role("link", name="garden").click()
        page.locator(".node", has_text='"Herbs"').wait_for()
        assert page.locator(".node", has_text="<img src=x").count() == 1
        assert page.locator(".state img").count() == 0
        slider = page.get_by_label("Moment in the history")
        slider.focus()
        page.keyboard.press("ArrowLeft")
        page.locator(".node", has_text='"Bed 2"').wait_for()
        assert f"{ids[5]} ·" in page.locator(".where").first.inner_text()
        page.keyboard.press("End")
        page.locator(".node", has_text='"Herbs"').wait_for()
        page.get_by_label("committed_id").fill(str(ids[0]))
        page.keyboard.press("Tab")
        expect(page.locator(".tree .node")).to_have_count(1)
        page.get_by_role("button", name="Newest").click()
        why = page.locator(".node", has_text='"Herbs"').get_by_role("button", name="why? title")
        why.focus()
        page.keyboard.press("Enter")
        changes = page.get_by_role("dialog").locator("ol.changes li")
        expect(changes).to_have_count(2)
        assert f"event {ids[6]}" in changes.first.inner_text()
        assert "by ann" in changes.first.inner_text()
        beside = page.get_by_role("dialog").locator("ul.changes li")
        expect(beside).to_have_count(1)
        assert "event.payload.options.parent" in beside.inner_text()
        page.keyboard.press("Escape")
        page.get_by_role("button", name="why here? n3").click()
        page.get_by_role("dialog").get_by_text('below "n1"').first.wait_for()
        page.keyboard.press("Escape")
        page.get_by_label("Compare two moments").check()
        other = page.get_by_label("Moment to compare with")
        other.fill("5")
        page.locator(".differences li", has_text="place of n3").wait_for()
        expect(page.locator(".differences li")).to_have_count(2)


def test_a_connection_is_kicked(browser: Browser, server: Server) -> None:
    with window(browser, server) as (page, _), server.client("guest") as guest:
        show(page, "connections")
        page.get_by_role("button", name="Kick client guest").click()
        page.get_by_role("button", name="End its connections").click()
        assert until_closed(guest) is not None
        page.locator("tbody th", has_text="guest").wait_for(state="detached")


def test_the_model_and_a_refused_preview(browser: Browser, server: Server, ids: list[int]) -> None:
    with window(browser, server) as (page, errors):
        show(page, "model")
        page.get_by_role("rowheader", name="note.added", exact=True).wait_for()
        page.locator("summary", has_text="rules.py").click()
        page.locator("pre", has_text="def added").wait_for()
        page.get_by_label("Directory on the server's machine").fill("/nonexistent")
        page.get_by_role("button", name="Preview").click()
        page.locator(".warning").wait_for()
        # The browser reports every answer that is an error; this one was asked for.
        assert errors.pop().startswith("Failed to load resource: the server responded with a status of 409")


def test_the_pipeline_and_how_to_set_one_up(browser: Browser, server: Server) -> None:
    with window(browser, server) as (page, _):
        show(page, "pipeline")
        page.get_by_text("unisono lake run").wait_for()
        now_ms = time.time_ns() // 1_000_000
        done = StageStatus(runs=3, last_done_ms=now_ms, items=7, note="7 events")
        failed = StageStatus(runs=1, failures=1, failed_in_a_row=1, error="2 events differ")
        status = PipelineStatus("/lake", "data", "host", 1, now_ms, now_ms, lake_head=5)
        status.stages = {"export": done, "audit": failed}
        write_pipeline_status(server.data / STATUS_FILE, status)
        page.get_by_role("rowheader", name="audit").wait_for()
        page.get_by_text("2 events differ").wait_for()
        show(page, "now")
        page.get_by_text("The last audit found something wrong").wait_for()
    (server.data / STATUS_FILE).unlink()


def test_queries_over_the_lake_and_reports_in_frames(
    browser: Browser, server: Server, tmp_path: Path
) -> None:
    shutil.unpack_archive(OLD_LAKES / "layout-1.zip", tmp_path / "lake")
    (tmp_path / "out" / "report").mkdir(parents=True)
    (tmp_path / "out" / "report" / "index.html").write_text(
        "<!DOCTYPE html><title>R</title><h1>What happened</h1><script>document.title = 'owned'</script>"
        "<script>parent.document.title = 'owned'</script><img src=x onerror=\"parent.document.title='owned'\">"
    )
    now_ms = time.time_ns() // 1_000_000
    status = PipelineStatus(
        str(tmp_path / "lake"), "data", "host", 1, now_ms, now_ms, out=str(tmp_path / "out")
    )
    write_pipeline_status(server.data / STATUS_FILE, status)
    with window(browser, server, 360) as (page, errors):
        show(page, "pipeline")
        box = page.get_by_label("One SELECT")
        page.get_by_role("button", name="Run").click()
        result = page.get_by_role("region", name="Result")
        result.get_by_text("treePush").wait_for()
        box.fill("SELECT '<b onclick=x>' AS \"<i>\", count(*) AS n FROM events")
        box.press("Control+Enter")
        result.get_by_text("<b onclick=x>").wait_for()
        assert "60" in result.inner_text()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.evaluate(AXE.read_text("utf-8"))
        assert findings(page) == []
        page.locator("iframe.report").scroll_into_view_if_needed()
        page.frame_locator("iframe.report").get_by_role("heading", name="What happened").wait_for()
        assert page.frames[1].title() == "R"
        box.fill("COPY events TO 'x'")
        page.get_by_role("button", name="Run").click()
        page.get_by_text("the lake cannot be changed here").wait_for()
        # What the page of the report tries is refused, and the browser says so, as it does of the refused query.
        asked_for = ("status of 409", "/reports/")
        assert any("409" in each for each in errors)
        errors[:] = [each for each in errors if not any(part in each for part in asked_for)]
    (server.data / STATUS_FILE).unlink()


def test_a_restarted_server_asks_for_its_new_token(browser: Browser, tmp_path: Path) -> None:
    server = Server(tmp_path / "data", "--model", "open").start()
    try:
        context = browser.new_context()
        page = context.new_page()
        page.goto(console_link(server.data))
        page.get_by_role("heading", name="Now", level=1).wait_for()
        port = server.admin.rpartition(":")[2]
        assert server.stop() == 0
        page.get_by_role("alert").filter(has_text="does not answer").wait_for()
        server.arguments = (*server.arguments, "--admin-port", port)
        server.start()
        page.get_by_label("Admin token").wait_for()
        context.close()
    finally:
        server.kill()
