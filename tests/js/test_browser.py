"""The JavaScript client in a real Chromium: tabs with one connection, windows that converge, storage refused."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from tests.behaviour.server.harness import tree_event
from tests.js.browser import chromium, opened, site
from tests.js.server_control import ControlledServer, controlled
from tests.waiting import until

_names = count(1)


@pytest.fixture(scope="module")
def address(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with site(tmp_path_factory.mktemp("site")) as served:
        yield served


@pytest.fixture(scope="module")
def browser(built: Path) -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    made = browser.new_context()
    yield made
    made.close()


Tab = Callable[..., Page]


@pytest.fixture
def tab(control: tuple[ControlledServer, str], address: str) -> Tab:
    """Open a tab with a started client: `tab(context, "ann", partition)`."""

    def make(context: BrowserContext, who: str, partition: str, **more: Any) -> Page:
        page = opened(context.new_page(), address)
        _start(page, control[0], who, partition, **more)
        return page

    return make


def _start(page: Page, owner: ControlledServer, who: str, partition: str, **more: Any) -> None:
    given = {
        "url": owner.server.url,
        "clientId": who,
        "token": owner.server.token(who),
        "partition": partition,
    }
    page.evaluate("given => window.open_client(given)", given | more)


def _view(page: Page) -> Any:
    return page.evaluate("JSON.stringify(window.client.view())")


def _status(page: Page, field: str) -> Any:
    return page.evaluate("field => window.client.getStatus()[field]", field)


def _push(page: Page, id: str) -> None:
    page.evaluate('id => window.client.tree("list").push({ id }, { position: "last" })', id)


def _kill(page: Page) -> None:
    """kill -9 of the process that shows this tab: the one whose processor time rises while the tab is kept busy."""
    browser = page.context.browser
    assert browser is not None
    session = browser.new_browser_cdp_session()

    def spent() -> dict[int, float]:
        listed = session.send("SystemInfo.getProcessInfo")["processInfo"]
        return {each["id"]: each["cpuTime"] for each in listed if each["type"] == "renderer"}

    before = spent()
    page.evaluate("() => { const end = performance.now() + 500; while (performance.now() < end); }")
    after = spent()
    os.kill(max(after, key=lambda pid: after[pid] - before.get(pid, after[pid])), signal.SIGKILL)


def _events(owner: ControlledServer, partition: str) -> list[str]:
    with owner.server.client(f"reader-{next(_names)}") as reader:
        return [event["id"] for event in reader.history([partition])]


def _items(owner: ControlledServer, partition: str) -> list[str]:
    with owner.server.client(f"reader-{next(_names)}") as reader:
        return [event["event"]["payload"]["value"]["id"] for event in reader.history([partition])]


@pytest.mark.req("CLIENT-01", "CLIENT-03")
def test_five_tabs_have_one_connection_and_survive_their_leader(
    context: BrowserContext, tab: Tab, control: tuple[ControlledServer, str]
) -> None:
    owner, part, who = control[0], f"tabs-{next(_names)}", f"ann-{next(_names)}"
    before = owner.server.metric("unisono_connections")
    tabs = [tab(context, who, part) for _ in range(5)]
    until(lambda: all(_status(page, "phase") == "live" for page in tabs), "not all tabs are live")
    assert sum(_status(page, "leader") for page in tabs) == 1
    assert owner.server.metric("unisono_connections") == before + 1
    for number, page in enumerate(tabs):
        _push(page, f"a{number}")
    until(lambda: len({_view(page) for page in tabs}) == 1, "the tabs show different things")
    leader = next(page for page in tabs if _status(page, "leader"))
    others = [page for page in tabs if page is not leader]
    leader.evaluate('() => { window.client.tree("list").push({ id: "last words" }); }')
    _push(others[0], "meanwhile")
    _kill(leader)
    started = time.monotonic()
    until(lambda: any(_status(page, "leader") for page in others), "nobody leads")
    assert time.monotonic() - started < 5
    for number, page in enumerate(others):
        _push(page, f"b{number}")
    for page in others:
        page.evaluate("window.caught_up()")
    until(lambda: len({_view(page) for page in others}) == 1, "the tabs show different things")
    items = _items(owner, part)
    assert len(items) == len(set(items))
    assert {"a0", "a1", "a2", "a3", "a4", "meanwhile", "b0", "b1", "b2", "b3"} <= set(items)
    shown = others[0].evaluate("window.client.view().list.tree.map(node => node.id)")
    assert sorted(shown) == sorted(items)
    # A tab without the connection asks the server through the one that has it.
    with owner.server.client(f"reader-{next(_names)}") as reader:
        reader.commit([f"{part}-other"], tree_event("A", "list"))
    for page in others:
        count_events = "name => window.client.history(name).then(({ events }) => events.length)"
        found = page.evaluate(count_events, f"{part}-other")
        assert found == 1
    assert owner.server.metric("unisono_connections") == before + 1


def _others(page: Page) -> Any:
    return page.evaluate(
        "Object.fromEntries(window.client.presence().others.map(o => [o.clientId, o.value]))"
    )


def _until_others(page: Page, expected: Any, what: str) -> None:
    until(lambda: _others(page) == expected, what)


def _say(page: Page, value: str) -> None:
    page.evaluate("value => window.client.presence().set(value)", value)


@pytest.mark.req("EXT-05", "EXT-06")
def test_what_a_tab_says_ends_with_the_tab(
    browser: Browser, context: BrowserContext, tab: Tab, control: tuple[ControlledServer, str]
) -> None:
    owner, part = control[0], f"here-{next(_names)}"
    ann, ben = f"ann-{next(_names)}", f"ben-{next(_names)}"
    other = browser.new_context()
    watcher = tab(other, ben, part)
    watcher.evaluate("window.caught_up()")  # its connection is counted before
    _say(watcher, "ben")
    before = owner.server.metric("unisono_connections")
    tabs = [tab(context, ann, part) for _ in range(4)]
    leader, second, third, fourth = tabs
    until(lambda: _status(leader, "leader"), "the first tab does not lead")
    assert not any(_status(page, "leader") for page in tabs[1:])
    for page in tabs:  # also those that came later
        _until_others(page, {ben: "ben"}, "a tab does not see who is there")
    for page, value in ((leader, "first"), (second, "second"), (third, "third"), (fourth, "fourth")):
        _say(page, value)
        _until_others(watcher, {ann: value}, f"{value} is not seen")
    fourth.evaluate("window.client.stop()")
    _until_others(watcher, {ann: "third"}, "what a stopped tab said is still there")
    _kill(third)
    _until_others(watcher, {ann: "second"}, "what a killed tab said is still there")
    _kill(leader)
    until(lambda: _status(second, "leader"), "nobody leads")
    _until_others(watcher, {ann: "second"}, "the tab that leads now does not say what it said")
    _until_others(second, {ben: "ben"}, "the tab that leads now does not see who is there")
    until(lambda: owner.server.metric("unisono_connections") == before + 1, "not one connection")
    second.evaluate("window.client.presence().clear()")
    _until_others(watcher, {}, "what was taken back is still there")
    other.close()
    _until_others(second, {}, "a closed window is still there")


@pytest.mark.req("CLIENT-13")
def test_two_windows_converge_through_an_offline_spell_and_a_killed_server(
    browser: Browser, tab: Tab, control: tuple[ControlledServer, str]
) -> None:
    owner, part = control[0], f"windows-{next(_names)}"
    contexts = [browser.new_context(), browser.new_context()]
    ann, bob = (tab(context, f"w-{next(_names)}", part) for context in contexts)
    _push(ann, "A")
    bob.wait_for_function("window.client.view().list?.items.A")
    contexts[1].set_offline(True)
    bob.evaluate("window.client.pause()")
    ann.evaluate('window.client.tree("list").delete("A")')
    bob.evaluate('window.client.tree("list").update("A", { title: "mine" })')
    _push(bob, "B")
    ann.evaluate("window.caught_up()")
    owner.perform("kill")
    _push(ann, "C")
    owner.perform("start")
    contexts[1].set_offline(False)
    bob.evaluate("window.client.resume()")
    for page in (ann, bob):
        page.evaluate("window.caught_up()")
    until(lambda: _view(ann) == _view(bob), "the windows show different things")
    rejected = bob.evaluate("window.client.rejected().map(each => each.errors[0].field)")
    assert rejected == ["event.payload.options.id"]
    assert bob.evaluate("Object.keys(window.client.view().list.items).sort()") == ["B", "C"]
    for context in contexts:
        context.close()


@pytest.mark.req("CLIENT-01")
def test_a_reload_in_the_middle_of_submits_loses_nothing(
    context: BrowserContext, tab: Tab, control: tuple[ControlledServer, str], address: str
) -> None:
    owner, part, who = control[0], f"reload-{next(_names)}", f"ann-{next(_names)}"
    page = tab(context, who, part)
    page.evaluate(
        """() => { window.acknowledged = []; sessionStorage.acknowledged = "[]";
        (async () => { for (let n = 0; n < 10000; n += 1) {
            const draft = await window.client.tree("list").push({ id: `n${n}` });
            window.acknowledged.push(draft.id);
            sessionStorage.acknowledged = JSON.stringify(window.acknowledged);
        } })(); }"""
    )
    page.wait_for_function("window.acknowledged.length > 20")
    opened(page, address)
    acknowledged = page.evaluate("JSON.parse(sessionStorage.acknowledged)")
    assert len(acknowledged) > 20
    _start(page, owner, who, part)
    page.evaluate("window.caught_up()")
    committed = _events(owner, part)
    assert set(acknowledged) <= set(committed)
    assert len(committed) == len(set(committed))


def test_where_storage_is_refused_the_client_says_so_and_works(
    context: BrowserContext, tab: Tab, control: tuple[ControlledServer, str]
) -> None:
    context.add_init_script(
        "indexedDB.constructor.prototype.open = () => { throw new DOMException('denied', 'SecurityError'); }"
    )
    page = tab(context, f"ann-{next(_names)}", f"refused-{next(_names)}")
    assert _status(page, "durable") is False
    assert page.evaluate("window.problems") == ["storage_refused"]
    _push(page, "A")
    page.evaluate("window.caught_up()")


@pytest.mark.req("CLIENT-09")
def test_a_hidden_tab_sends_its_heartbeats_from_a_worker(
    context: BrowserContext, tab: Tab, control: tuple[ControlledServer, str]
) -> None:
    context.add_init_script(
        """window.throttled = 0; const real = window.setInterval;
        window.setInterval = (...given) => { window.throttled += 1; return real(...given); };"""
    )
    page = tab(context, f"ann-{next(_names)}", f"hidden-{next(_names)}", options={"heartbeatIntervalMs": 50})
    page.evaluate("window.caught_up()")
    assert page.evaluate("window.throttled") == 0
    assert len(page.workers) == 1
    page.evaluate("window.client.stop()")

    def worker_is_gone() -> bool:
        page.wait_for_timeout(20)  # the browser's events arrive while it waits
        return not page.workers

    until(worker_is_gone, "the worker goes on")


HIDDEN = """
  window.hide = (minute) => { // as browsers do with a page that is not seen: its timers fire once a minute
    const real = window.setTimeout.bind(window);
    const late = (ms) => Math.ceil((performance.now() + ms) / minute) * minute - performance.now();
    window.setTimeout = (run, ms = 0, ...given) => real(run, late(ms), ...given);
    window.setInterval = (run, ms = 0, ...given) => {
      const again = () => { run(...given); real(again, late(ms)); };
      return real(again, late(ms));
    };
    window.lost = 0;
    window.client.on("status", ({ status }) => { if (status.phase === "offline") window.lost += 1; });
    window.client.pause(); // the next connection begins hidden
    window.client.resume();
  };
"""


@pytest.mark.soak
@pytest.mark.timeout(180)
@pytest.mark.req("CLIENT-09", "HB-02")
def test_half_an_hour_in_the_background_ends_no_connection(
    browser: Browser, address: str, built: Path, tmp_path: Path
) -> None:
    """One minute is a second here, for the page, its heartbeats and the server's patience alike."""
    minutes, patience = 30, {"heartbeatIntervalMs": 167, "deadAfterMs": 10_000}
    with controlled(
        tmp_path / "data", "--model", "open", "--access-default", "allow", "--heartbeat-timeout-s", "0.8"
    ) as (owner, _):
        pages = {}
        for who in ("worker", "without"):
            context = browser.new_context()
            context.add_init_script(HIDDEN + ("delete window.Worker;" if who == "without" else ""))
            page = opened(context.new_page(), address)
            _start(page, owner, who, "p", options=patience)
            page.evaluate("window.caught_up()")
            page.evaluate("window.hide(1000)")
            pages[who] = page
        until(lambda: _status(pages["worker"], "phase") == "live", "the page is not back")
        for page in pages.values():
            page.evaluate("window.lost = 0")
        for minute in range(minutes):
            pages["worker"].wait_for_timeout(1000)
            with owner.server.client(f"other-{next(_names)}") as other:
                other.commit(["p"], tree_event(f"m{minute}", "list"))
        _push(pages["worker"], "mine")
        pages["worker"].evaluate("window.caught_up()")
        assert pages["worker"].evaluate("window.lost") == 0
        assert pages["worker"].evaluate("Object.keys(window.client.view().list.items).length") == minutes + 1
        assert pages["without"].evaluate("window.lost") > 0, "the timers are not held back: nothing was tried"
        for page in pages.values():
            page.context.close()


def test_react_hooks_show_what_the_client_shows(
    context: BrowserContext, control: tuple[ControlledServer, str], address: str
) -> None:
    owner, part, who = control[0], f"react-{next(_names)}", f"ann-{next(_names)}"
    page = opened(context.new_page(), f"{address}react.html")
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    _start(page, owner, who, part)
    page.wait_for_function("document.querySelector('#phase')?.textContent === 'live'")
    with owner.server.client(f"other-{next(_names)}") as other:
        other.commit([part], tree_event("A", "list"))
        page.wait_for_function("document.querySelector('#view').textContent.includes('\"A\"')")
        page.evaluate("window.client.pause()")
        page.wait_for_function("document.querySelector('#phase').textContent === 'offline'")
        other.commit([part], {"type": "treeDelete", "payload": {"target": "list", "options": {"id": "A"}}})
        page.evaluate('window.client.tree("list").update("A", { title: "late" })')
        page.wait_for_function("document.querySelector('#pending').textContent === 'treeUpdate'")
        page.click("#again")
        page.evaluate("window.client.resume()")
        page.wait_for_function("document.querySelector('#rejected').textContent === 'validation_failed'")
        page.wait_for_function("document.querySelector('#pending').textContent === ''")
        page.evaluate("window.client.discard(window.client.rejected()[0].id)")
        page.wait_for_function("document.querySelector('#rejected').textContent === ''")
        page.wait_for_function("document.querySelector('#past').textContent === 'treeDelete,treePush'")
        page.evaluate('window.client.set("theme", "dark")')
        page.wait_for_function("document.querySelector('#past').textContent === 'set,treeDelete'")
        page.click("#undo")
        page.wait_for_function("document.querySelector('#redo').textContent === 'set'")
        page.wait_for_function("!document.querySelector('#view').textContent.includes('dark')")
        page.click("#redo")
        page.wait_for_function("document.querySelector('#view').textContent.includes('dark')")
    assert errors == []


@pytest.mark.req("EXT-06")
def test_the_presence_hook_says_its_value_while_it_is_mounted(
    browser: Browser, context: BrowserContext, tab: Tab, control: tuple[ControlledServer, str], address: str
) -> None:
    owner, part, who = control[0], f"react-{next(_names)}", f"ann-{next(_names)}"
    elsewhere = browser.new_context()
    watcher = tab(elsewhere, f"ben-{next(_names)}", part)
    page = opened(context.new_page(), f"{address}react.html")
    _start(page, owner, who, part)
    _until_others(watcher, {who: {"place": 0}}, "the first value is not seen")
    watcher.evaluate('window.client.presence().set({ place: "top" })')
    page.wait_for_function("document.querySelector('#others').textContent === 'top'")
    page.click("#again")
    _until_others(watcher, {who: {"place": 1}}, "the second value is not seen")
    page.click("#again")  # the component is there no more
    _until_others(watcher, {}, "the value is seen after the component")
    elsewhere.close()
