"""The application before a real server: what is typed, what is seen, and that everybody sees the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.behaviour.server.harness import Server, tree_event
from tests.client.running import WAIT_S, asynchronous, of, until
from tests.terminal.screens import Screen, screen
from unisono.client.api import PartitionPresence
from unisono.terminal.app import OutlineApp
from unisono.vocabulary import Json


@asynchronous
async def test_two_terminals_converge(server: Server, part: str) -> None:
    async with screen(server, "ann", part) as ann, screen(server, "ben", part) as ben:
        await ann.says("Nothing here yet: press a to add an item.")
        await ann.add("Shopping")
        await ann.press("c", *"milk", "enter", "a", *"bread", "enter", "a", *"tea", "enter")
        await ben.shows("▾ Shopping", "  • milk", "  • bread", "  • tea")
        await ben.press("down", "r")
        await ben.type(" and oats")
        await ann.shows("▾ Shopping", "  • milk and oats", "  • bread", "  • tea")
        await ben.press("J", "tab")
        await ann.shows("▾ Shopping", "  ▾ bread", "    • milk and oats", "  • tea")
        await ben.press("shift+tab", "shift+up", "less_than_sign")
        await ann.shows("▾ Shopping", "  • bread", "  • tea", "• milk and oats")
        await ann.press("d")
        await ben.shows("▾ Shopping", "  • bread", "• milk and oats")
        await ann.is_live()
        await ben.is_live()
        assert ann.outline == ben.outline
        assert ann.client.view() == ben.client.view()


@asynchronous
async def test_who_is_here_and_at_which_item(server: Server, part: str) -> None:
    async with screen(server, "ann", part) as ann:
        await ann.add("milk", "bread")
        await ann.is_live()
        async with screen(server, "ben", part) as ben:
            await ben.shows("• milk", "• bread")
            await ann.says("here: ben")
            await ben.says("here: ann at 'bread'")
            await ben.press("home")
            await ben.press("down")
            await ann.says("here: ben at 'bread'")
            await ben.press("up")
            await ann.says("here: ben at 'milk'")
        await until(lambda: "here:" not in ann.text)


@asynchronous
async def test_who_comes_while_the_screen_opens_is_shown(
    server: Server, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else happens afterwards for which the screen is drawn."""
    async with of(server, "ann", part) as ann, of(server, "ben", part) as ben:
        await ben.caught_up(WAIT_S)
        said = PartitionPresence.set

        async def meanwhile(presence: PartitionPresence, value: Json) -> None:
            await said(presence, value)
            await said(ann.presence(), {"name": "ann"})
            await until(lambda: presence.others != ())

        monkeypatch.setattr(PartitionPresence, "set", meanwhile)
        app = OutlineApp(ben, partition=part, target="outline", client_id="ben")
        async with app.run_test() as pilot:
            await Screen(app, pilot).says("here: ann")


@asynchronous
async def test_both_edit_while_one_is_offline_and_end_equal(server: Server, part: str) -> None:
    async with screen(server, "ann", part) as ann, screen(server, "ben", part) as ben:
        await ann.add("one", "two", "three")
        await ann.is_live()
        await ben.shows("• one", "• two", "• three")
        await ann.goes_offline()
        await ann.press("home", "r")
        await ann.type(" by Ann")
        await ann.add("new of Ann")
        await ann.shows("• one by Ann ○", "• new of Ann ○", "• two", "• three")
        await ann.says("2 pending")
        await ben.press("end", "shift+up", "a")
        await ben.type("new of Ben")
        await ben.shows("• one", "• three", "• new of Ben", "• two")
        await ben.is_live()
        await ann.press("o")
        for each in (ann, ben):
            await each.shows("• one by Ann", "• new of Ann", "• three", "• new of Ben", "• two")
        await ann.is_live()
        assert ann.selected == "new of Ann"


@asynchronous
async def test_a_rejected_edit_is_shown_and_discarded(server: Server, part: str) -> None:
    async with screen(server, "ann", part) as ann, screen(server, "ben", part) as ben:
        await ann.add("one", "two")
        await ann.is_live()
        await ben.shows("• one", "• two")
        await ann.goes_offline()
        await ann.press("r")
        await ann.type(" and more")
        await ann.shows("• one", "• two and more ○")
        await ben.press("end", "d")
        await ben.is_live()
        await ann.press("o")
        await ann.shows("• one")
        await ann.says("rejected: 1", "to “two and more”", "validation_failed", "there is no item of this id")
        assert ann.selected == "one"
        await ann.press("x", "r")
        await ann.says("still refused")
        await ann.press("d")
        await until(lambda: "rejected: 1" not in ann.text)
        assert ann.client.rejected() == ()
        await until(lambda: ann.app.focused is ann.app.outline_view)
        await ann.press("x")
        await ann.says("nothing was rejected")


@asynchronous
async def test_an_addition_whose_place_is_gone_is_retried_at_the_end(server: Server, part: str) -> None:
    async with screen(server, "ann", part) as ann, screen(server, "ben", part) as ben:
        await ann.add("one", "two")
        await ben.shows("• one", "• two")
        await ann.is_live()
        await ann.goes_offline()
        await ann.add("three")
        await ben.press("end", "d")
        await ben.is_live()
        await ann.press("o")
        await ann.says("rejected: 1", "add “three”")
        await ann.press("x", "r")
        for each in (ann, ben):
            await each.shows("• one", "• three")
        await ann.is_live()
        assert ann.client.rejected() == ()


@asynchronous
async def test_what_the_server_refuses_always_comes_back_rejected(server: Server, part: str) -> None:
    async with screen(server, "ann", part) as ann:
        await ann.press("a")
        ann.app._title_line.value = "x" * 201
        await ann.press("enter")
        await ann.says("1 rejected", "event.payload.value.title", "0 pending")
        await ann.press("x", "r")
        await until(lambda: ann.client.status.pending == 0 and ann.client.status.rejected == 1)
        await ann.press("escape")
        await until(lambda: ann.app.focused is ann.app.outline_view)
        await ann.add("short")
        await ann.shows("• short")


@asynchronous
async def test_edits_of_others_leave_the_selection_in_its_line(server: Server, part: str) -> None:
    with server.client(f"{part}-writer") as writer:
        for number in reversed(range(60)):
            writer.commit([part], tree_event(f"n{number}", "outline", title=f"number {number}"))
        async with screen(server, "ann", part) as ann:
            await until(lambda: len(ann.app.outline_view.outline.rows) == 60)
            await ann.is_live()
            await ann.press(*["down"] * 40)
            assert ann.selected == "number 40"
            await until(lambda: "• number 40" in ann.outline)
            line = ann.outline.index("• number 40")
            for number in range(5):
                writer.commit([part], tree_event(f"above{number}", "outline", title="above"))
            await until(lambda: len(ann.app.outline_view.outline.rows) == 65)
            await until(lambda: ann.outline[line] == "• number 40")
            delete = {"type": "treeDelete", "payload": {"target": "outline", "options": {"id": "n40"}}}
            writer.commit([part], delete)
            await until(lambda: ann.selected == "number 41")
            await ann.press("pageup", "home")
            assert ann.selected == "above"
            await until(lambda: ann.outline[0] == "• above")
            await ann.press("end")
            await until(lambda: ann.outline[-1] == "• number 59")
            await ann.click(2)
            assert ann.selected == ann.outline[2].removeprefix("• ")


@asynchronous
async def test_what_is_being_typed_is_not_disturbed(server: Server, part: str) -> None:
    async with screen(server, "ann", part) as ann, screen(server, "ben", part) as ben:
        await ann.add("one", "two")
        await ben.shows("• one", "• two")
        await ann.press("r", "!", "?")
        await ben.press("d")
        await ann.shows("• two")
        await ann.says("rename “two”", "two!?")
        await ben.press("d")
        await ann.says("Nothing here yet")
        await ann.press("enter")
        await ann.says("deleted meanwhile")
        await ann.press("a", "x", "escape")
        await ann.is_live()
        assert ann.client.view() == ben.client.view()
        assert ann.outline == ["Nothing here yet: press a to add an item."]


@asynchronous
async def test_deleting_more_than_one_item_is_asked_about(server: Server, part: str) -> None:
    async with screen(server, "ann", part) as ann:
        await ann.add("top")
        await ann.press("c")
        await ann.type("below")
        await ann.press("up", "d")
        await ann.says("Delete “top” with all below it (1)?")
        await ann.press("n")
        await ann.shows("▾ top", "  • below")
        await ann.press("d", "y")
        await ann.says("Nothing here yet")


@asynchronous
async def test_folding(server: Server, part: str) -> None:
    async with screen(server, "ann", part) as ann, screen(server, "ben", part) as ben:
        await ann.add("top")
        await ann.press("c")
        await ann.type("below")
        await ann.press("left")
        assert ann.selected == "top"
        await ann.press("left")
        await ann.shows("▸ top (1)")
        await ben.shows("▾ top", "  • below")
        await ben.press("end", "a")
        await ben.type("more")
        await ann.shows("▸ top (2)")
        await ann.press("right", "right", "down")
        await ann.shows("▾ top", "  • below", "  • more")
        assert ann.selected == "more"
        await ann.press("home", "left", "a")
        await ann.type("last")
        await ben.shows("▾ top", "  • below", "  • more", "• last")
        await ben.press("end")
        await ann.press("tab")
        await ann.shows("▾ top", "  • below", "  • more", "  • last")


@asynchronous
async def test_edges_are_said_and_send_nothing(server: Server, part: str) -> None:
    async with screen(server, "ann", part) as ann:
        await ann.press("r", "d", "tab", "up", "left", "right", "home", "pagedown")
        await ann.add("only")
        await ann.is_live()
        cursor = ann.client.status.cursor
        await ann.press("shift+up")
        await ann.says("it is the first here")
        await ann.press("shift+down", "tab", "shift+tab")
        await ann.says("last here", "no item before it", "at the top already")
        await ann.press("r", "enter", "a", "enter", "a", "escape")
        await ann.is_live()
        assert ann.client.status.cursor == cursor


@asynchronous
async def test_drafts_outlive_the_application(server: Server, part: str, tmp_path: Path) -> None:
    path = tmp_path / "ann.db"
    async with screen(server, "ann", part, store=path, url="ws://127.0.0.1:9/sync") as ann:
        await ann.add("kept")
        await ann.shows("• kept ○")
        await ann.says("1 pending", "unreachable")
        await ann.press("q")
    async with screen(server, "ann", part, store=path) as ann, screen(server, "ben", part) as ben:
        await ann.shows("• kept")
        await ben.shows("• kept")
        await ann.is_live()


@asynchronous
async def test_another_client_of_the_same_id_is_told_and_can_be_taken_over_from(
    server: Server, part: str
) -> None:
    async with screen(server, "twin", part) as older:
        await older.is_live()
        async with screen(server, "twin", part) as newer:
            await newer.is_live()
            await older.says("stopped: another connection with this client_id took over")
            await older.press("o")
            await older.is_live()
            await newer.says("stopped: another connection")


@asynchronous
async def test_a_partition_that_is_refused_is_named(server: Server, part: str) -> None:
    token = server.token("ann", partitions=["elsewhere"])
    async with screen(server, "ann", part, token=token) as ann:
        await ann.says("the server refuses this partition: forbidden")


@asynchronous
async def test_a_token_that_is_refused_is_said(server: Server, part: str) -> None:
    async with screen(server, "ann", part, token="wrong") as ann:
        await ann.says("auth_failed")


@asynchronous
async def test_other_targets(server: Server, part: str) -> None:
    with server.client(f"{part}-writer") as writer:
        writer.commit([part], tree_event("f", "explorer", name="folder"))
        writer.commit([part], {"type": "set", "payload": {"target": "settings", "value": {"theme": "dark"}}})
    async with (
        screen(server, "ann", part, target="explorer") as ann,
        screen(server, "ben", part, target="settings") as ben,
    ):
        await ann.shows("• folder")
        await ann.press("r")
        await ann.type("s")
        await ann.shows("• folders")
        await ben.says("'settings' is no outline here")
        await ben.add("x")
        await ben.says("treePush is not allowed at this target")


@asynchronous
async def test_titles_from_others_cannot_break_the_screen(server: Server, part: str) -> None:
    with server.client(f"{part}-writer") as writer:
        for number, title in enumerate(("\x1b[2J[bold]red[/bold]\nsecond", "日本" * 60, "x" * 190)):
            writer.commit([part], tree_event(f"n{number}", "outline", title=title))
    async with screen(server, "ann", part, size=(40, 12)) as ann:
        await until(lambda: len(ann.app.outline_view.outline.rows) == 3)
        await until(lambda: len(ann.outline) == 3)
        long, wide, escaped = ann.outline
        assert long == f"• {'x' * 35}…"
        assert wide.startswith("• 日本日本")
        assert wide.endswith("…")
        assert escaped == "•  [2J[bold]red[/bold] second"
        await ann.goes_offline()
        await ann.press("r")
        await ann.type("!")
        await until(lambda: ann.outline[0] == f"• {'x' * 33}… ○")


@asynchronous
async def test_a_title_is_text_and_not_markup(server: Server, part: str) -> None:
    async with screen(server, "ann", part) as ann:
        await ann.add("[/b]", "[red]x[/red] [@click=app.quit]y[/]")
        await ann.shows("• [/b]", "• [red]x[/red] [@click=app.quit]y[/]")
        await ann.press("c")
        await ann.says("new item in “[red]x[/red] [@click=app.quit]y[/]”")
        await ann.type("[bold")
        await ann.press("up", "d")
        await ann.says("Delete “[red]x[/red]")
        await ann.press("n", "home", "r")
        await ann.says("rename “[/b]”")
        await ann.press("enter")
        await ann.press("a")
        ann.app._title_line.value = "[/i]" * 60
        await ann.press("enter")
        await ann.says("rejected: 1", "add “[/i][/i]")


@asynchronous
async def test_leaving_a_title_as_it_is_changes_nothing(server: Server, part: str) -> None:
    with server.client(f"{part}-writer") as writer:
        writer.commit([part], tree_event("n", "outline", title=" two\nlines "))
    async with screen(server, "ann", part) as ann:
        await ann.shows("•  two lines")
        await ann.press("r", "enter")
        await ann.is_live()
        assert ann.client.view() == {
            "outline": {"items": {"n": {"title": " two\nlines "}}, "tree": [{"id": "n", "children": []}]}
        }
