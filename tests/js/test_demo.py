"""The demo of `--dev` in a real Chromium: windows converge, drafts look like drafts, refusals explain themselves."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.behaviour.server.harness import Server
from tests.forking import run as command
from tests.js.browser import chromium
from tests.js.node import CLIENTS, run
from tests.waiting import PATIENCE_S
from unisono.demo.site import STATIC

_numbers = count(1)


class DevServer(Server):
    """`unisono serve --dev`."""

    def serve_arguments(self) -> list[str]:
        return ["serve", "--dev", "--data", str(self.data), "--port", "0", "--admin-port", "0"]


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    server = DevServer(tmp_path_factory.mktemp("demo") / "data")
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def browser(built: Path) -> Iterator[Browser]:
    with chromium() as started:
        yield started


def window(browser: Browser, dev: DevServer, width: int = 1100, query: str = "", **more: str) -> Page:
    context = browser.new_context(viewport={"width": width, "height": 800}, **more)  # type: ignore[arg-type]
    page = context.new_page()
    page.set_default_timeout(PATIENCE_S * 1000)
    page.goto(f"{dev.admin}/demo/{query}")
    page.get_by_role("status").filter(has_text="Live").wait_for()
    return page


def add(page: Page, title: str, field: str = "New item", button: str = "Add") -> None:
    page.get_by_label(field, exact=True).fill(title)
    page.get_by_role("button", name=button, exact=True).click()


def test_the_built_client_is_up_to_date(built: Path, tmp_path: Path) -> None:
    run(str(CLIENTS / "build.mjs"), "--demo", str(tmp_path / "client.js"))
    fresh = (tmp_path / "client.js").read_bytes()
    assert (STATIC / "client.js").read_bytes() == fresh, "run: npm run build --prefix clients/js"


def test_two_windows_converge_and_a_refusal_explains_itself(browser: Browser, dev: DevServer) -> None:
    ann, bob = window(browser, dev), window(browser, dev, width=360, color_scheme="dark")
    errors: list[str] = []
    for page in (ann, bob):
        page.on("pageerror", lambda error: errors.append(str(error)))
    add(ann, "Raised beds")
    bob.get_by_label("Title of Raised beds").wait_for()
    add(ann, "To do", "New list", "Add list")
    bob.get_by_label("Add a card to To do").click()
    ann.get_by_label("Title of New card").wait_for()
    bob.get_by_label("Offline").check()
    bob.get_by_role("status").filter(has_text="Offline").wait_for()
    title = bob.get_by_label("Title of Raised beds")
    title.fill("Herb beds")
    title.press("Tab")
    bob.locator("li.draft").wait_for()
    assert bob.get_by_role("status").inner_text().startswith("Offline · 1 not sent yet")
    ann.get_by_label("Delete Raised beds").click()
    ann.get_by_label("Title of Raised beds").wait_for(state="detached")
    bob.get_by_label("Offline").uncheck()
    refused = bob.locator("#rejected li")
    refused.wait_for()
    assert "there is no item of this id" in refused.inner_text()
    bob.get_by_role("button", name="Discard Herb beds").click()
    refused.wait_for(state="detached")
    assert bob.get_by_label("Title of Raised beds").count() == 0
    assert errors == []
    assert bob.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "too wide for a phone"
    for page in (ann, bob):
        page.context.close()


@pytest.mark.req("EXT-05")
def test_others_are_seen_where_they_are(browser: Browser, dev: DevServer) -> None:
    ann, bob = window(browser, dev), window(browser, dev, width=360)
    ann.get_by_label("Your name").fill("Ann")
    bob.locator("#people").get_by_text("Ann", exact=True).wait_for()
    add(ann, "Strawberries")
    field = ann.get_by_label("Title of Strawberries")
    field.focus()
    mark = bob.locator(".row", has=bob.get_by_label("Title of Strawberries")).get_by_text("Ann", exact=True)
    mark.wait_for()
    assert bob.locator("main .person").count() == 1
    # What is being typed stays while others change things, and is saved when the field is left.
    field.press("End")
    field.press("!")
    add(bob, "Rhubarb")
    ann.get_by_label("Title of Rhubarb").wait_for()
    assert field.input_value() == "Strawberries!"
    assert ann.evaluate("document.activeElement.selectionStart") == len("Strawberries!")
    field.press("Tab")
    bob.get_by_label("Title of Strawberries!").wait_for()
    mark.wait_for(state="detached")
    # A title that another one changes while the field has the focus is not changed back.
    ann.get_by_label("Title of Rhubarb").focus()
    theirs = bob.get_by_label("Title of Rhubarb")
    theirs.fill("Red rhubarb")
    theirs.press("Enter")
    ann.get_by_label("Title of Red rhubarb").wait_for()
    ann.get_by_label("New item").focus()
    bob.evaluate("client.caughtUp()")
    ann.evaluate("client.caughtUp()")
    assert ann.get_by_label("Title of Red rhubarb").count() == 1
    ann.context.close()
    bob.locator("#people").get_by_text("Ann", exact=True).wait_for(state="detached")
    bob.context.close()


@pytest.mark.req("EXT-03")
def test_the_history_says_who_did_what_and_when(browser: Browser, dev: DevServer) -> None:
    ann = window(browser, dev)
    ann.get_by_label("Your name").fill("Ann Example")
    ann.reload()  # the next token has the name
    ann.get_by_role("status").filter(has_text="Live").wait_for()
    bob = window(browser, dev)
    bob.get_by_text("History", exact=True).click()
    for number in range(25):
        add(ann, f"Row {number}")
    bob.locator("#past li").first.filter(has_text="Ann Example added “Row 24”").wait_for()
    ann.get_by_text("History", exact=True).click()
    ann.locator("#past li").first.filter(has_text="You added “Row 24”").wait_for()
    assert bob.locator("#past time").first.get_attribute("datetime")
    assert bob.locator("#past li").count() == 20
    bob.get_by_label("Offline").check()  # it is this browser's own
    bob.get_by_role("button", name="Show older").click()
    bob.locator("#past li").nth(24).wait_for()
    bob.get_by_label("Delete Row 24").click()
    bob.locator("li").filter(has_text="Row 24").first.wait_for()
    assert "deleted" not in bob.locator("#past li").first.inner_text()  # a draft is not history
    for page in (ann, bob):
        page.context.close()


@pytest.mark.req("CLIENT-20", "CLIENT-22")
def test_what_a_person_did_is_taken_back_and_what_others_did_is_not(browser: Browser, dev: DevServer) -> None:
    ann, bob = window(browser, dev), window(browser, dev)
    undo, redo = (ann.locator(f"#{name}") for name in ("undo", "redo"))
    assert undo.get_attribute("aria-disabled") == "true"
    add(ann, "Compost")
    field = bob.get_by_label("Title of Compost")
    field.wait_for()
    ann.get_by_label("Delete Compost").click()
    field.wait_for(state="detached")
    ann.get_by_role("button", name="Undo: deleted “Compost”").click()
    field.wait_for()
    ann.get_by_role("button", name="Redo: deleted “Compost”").click()
    field.wait_for(state="detached")
    ann.get_by_label("New list").focus()
    ann.keyboard.press("Tab")
    ann.keyboard.press("Control+z")
    field.fill("Leaf mould")
    field.press("Enter")
    ann.get_by_label("Title of Leaf mould").wait_for()
    undo.click()  # the push: somebody has changed the item since
    ann.get_by_role("status").filter(has_text="somebody has changed it since").wait_for()
    assert redo.get_attribute("aria-disabled") == "false"
    for page in (ann, bob):
        page.context.close()


@pytest.mark.req("EXT-20", "CLIENT-15")
def test_the_history_before_a_snapshot_comes_from_the_server(browser: Browser, dev: DevServer) -> None:
    ann = window(browser, dev)
    for number in range(3):
        add(ann, f"Old {number}")
    ann.get_by_label("Title of Old 2").wait_for()  # it is stored as a draft by then
    ann.evaluate("client.caughtUp()")
    done = command("snapshot", "--data", dev.data, "--partition", "demo")
    assert done.returncode == 0, done.stderr
    bob = window(browser, dev)
    bob.get_by_text("History", exact=True).click()
    bob.locator("#past li").first.filter(has_text="added “Old 2”").wait_for()
    assert (
        bob.evaluate(
            "indexedDB.databases().then(([{ name }]) => new Promise((done) => { const open = indexedDB.open(name);"
            " open.onsuccess = () => { const all = open.result.transaction('events').objectStore('events').count();"
            " all.onsuccess = () => done(all.result); }; }))"
        )
        == 0
    ), "the events are in the browser's store"
    bob.get_by_label("Offline").check()
    bob.get_by_role("status").filter(has_text="Offline").wait_for()
    bob.get_by_label("New item").fill("A draft")
    bob.get_by_role("button", name="Add", exact=True).click()
    bob.locator("#on-server").filter(has_text="is on the server").wait_for()
    for page in (ann, bob):
        page.context.close()


def _full(browser: Browser, dev: DevServer, scheme: str = "light") -> tuple[Page, Page]:
    """A window that shows everything the demo has, and that of somebody who is at an item."""
    page, other = window(browser, dev, color_scheme=scheme), window(browser, dev)
    title, board = f"Seen in {scheme} {next(_numbers)}", f"List {next(_numbers)}"
    add(page, title)
    add(page, board, "New list", "Add list")
    page.get_by_label(f"Add a card to {board}").click()
    page.get_by_text("History", exact=True).click()
    page.get_by_label("Offline").check()
    page.get_by_role("status").filter(has_text="Offline").wait_for()
    late = page.get_by_label(f"Title of {title}")
    late.fill("Too late")
    late.press("Enter")
    other.get_by_label(f"Delete {title}").click()
    other.get_by_label(f"Title of {title}").wait_for(state="detached")
    page.get_by_label("Offline").uncheck()
    page.locator("#rejected li").wait_for()
    other.get_by_label("Title of New card").first.focus()
    page.locator(".marks").wait_for()
    return page, other


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_has_nothing_serious_to_say(browser: Browser, dev: DevServer, scheme: str) -> None:
    page, other = _full(browser, dev, scheme)
    page.evaluate((CLIENTS / "node_modules/axe-core/axe.min.js").read_text())
    found = page.evaluate("axe.run()")
    assert len(found["passes"]) > 20
    serious = [
        (each["id"], [node["html"] for node in each["nodes"]])
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
    ]
    assert serious == []
    page.get_by_role("button", name="Discard Too late").click()
    for each in (page, other):
        each.context.close()


REACHED = """() => {
  const { activeElement: at } = document;
  if (at === document.body) return null;
  const { outlineStyle, outlineWidth } = getComputedStyle(at);
  const seen = outlineStyle !== "none" && parseFloat(outlineWidth) > 0;
  return { place: [...document.querySelectorAll("*")].indexOf(at), seen };
}"""


def test_everything_is_reached_and_used_by_the_keyboard(browser: Browser, dev: DevServer) -> None:
    page, other = _full(browser, dev)
    usable = page.evaluate(
        """[...document.querySelectorAll("*")].flatMap((each, place) =>
        each.matches("button, input, summary, a[href]") && each.checkVisibility() ? [place] : [])"""
    )
    reached: list[int] = []
    for _ in range(2 * len(usable)):  # from where the focus is, to the end and on from the beginning
        page.keyboard.press("Tab")
        at = page.evaluate(REACHED)
        if at is not None:
            assert at["seen"], "the focus is not to be seen"
            if at["place"] in reached:
                break
            reached.append(at["place"])
    first = reached.index(min(reached))
    assert reached[first:] + reached[:first] == usable
    page.get_by_label("New item").focus()
    page.keyboard.type("By hand")
    page.keyboard.press("Enter")
    page.get_by_label("Title of By hand").wait_for()
    page.get_by_label("Add an item below By hand").focus()
    page.keyboard.press("Enter")
    page.get_by_label("Title of New item").wait_for()
    assert page.evaluate("document.activeElement.ariaLabel") == "Add an item below By hand"
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    page.get_by_label("Title of By hand").wait_for(state="detached")
    page.wait_for_function("document.activeElement.id === 'outline-text'")
    page.get_by_label("Offline").focus()
    page.keyboard.press("Space")
    page.get_by_role("status").filter(has_text="Offline").wait_for()
    for each in (page, other):
        each.context.close()


def test_a_second_window_is_another_person(browser: Browser, dev: DevServer) -> None:
    page = window(browser, dev)
    with page.expect_popup() as opening:
        page.get_by_role("button", name="Open a second window").click()
    other = opening.value
    other.get_by_role("status").filter(has_text="Live").wait_for()
    assert page.evaluate("client.getStatus().leader")
    assert other.evaluate("client.getStatus().leader")
    add(other, "From the other side")
    page.get_by_label("Title of From the other side").wait_for()
    page.context.close()


def test_tokens_are_for_this_machine(dev: DevServer) -> None:
    session = json.loads(dev.get("/demo/session?client_id=zoe"))
    assert session["url"] == dev.url
    for path, host, status in (
        ("/demo/session?client_id=zoe", "evil.example:80", 403),
        ("/demo/session?client_id=", "127.0.0.1", 400),
        ("/demo/..%2fsite.py", "127.0.0.1", 404),
    ):
        request = urllib.request.Request(dev.admin + path, headers={"Host": host})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=PATIENCE_S)
        assert refused.value.code == status, path
        refused.value.close()


def test_a_server_for_real_use_has_no_demo(tmp_path: Path) -> None:
    server = Server(tmp_path / "data").start()
    try:
        with pytest.raises(urllib.error.HTTPError) as refused:
            server.get("/demo/")
        assert refused.value.code == 404
        refused.value.close()
    finally:
        server.kill()
