"""The application: keys become events, and the client's changes are drawn.

All state is the client's. The application holds the outline it drew last, and asks the client again whenever that
tells of a change: its own drafts and the edits of others come the same way.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, Awaitable, Callable
from functools import partial
from typing import ClassVar, TypeAlias

from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Static

from unisono.client import ClientError, InvalidEvent, SyncClient
from unisono.client.ids import new_id
from unisono.display import blank_controls
from unisono.terminal import edits
from unisono.terminal.outline import Outline, read
from unisono.terminal.outline_view import OutlineView
from unisono.terminal.panels import Confirm, KeyLine, RejectedPanel, TitleLine
from unisono.terminal.presence_text import cursor_at, who_is_here
from unisono.terminal.status_text import quoted, status_line
from unisono.vocabulary import JsonObject

Edit: TypeAlias = Callable[[Outline, str], JsonObject | None]
Addition: TypeAlias = Callable[[Outline, str | None, str, str], JsonObject]


class OutlineApp(App[None]):
    """One partition's outline. The client is open and follows that partition; its opener closes it."""

    ENABLE_COMMAND_PALETTE = False

    CSS = """
    #here { height: 1; padding: 0 1; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis; }
    #heading { height: 1; padding: 0 1; background: $panel; text-wrap: nowrap; text-overflow: ellipsis; }
    ToastRack { dock: top; align: right top; margin: 1 0 0 0; }
    #status {
        height: auto; max-height: 2; padding: 0 1; background: $panel; text-wrap: nowrap; text-overflow: ellipsis;
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("o", "go_online_or_offline", "on/off", priority=True),
        Binding("x", "focus_rejected", "rejected", priority=True),
        Binding("q,ctrl+c", "quit", "quit", key_display="q", priority=True),
    ]

    def __init__(self, client: SyncClient, *, partition: str, target: str, client_id: str) -> None:
        super().__init__()
        self.client = client
        self.partition = partition
        self.target = target
        self.title = blank_controls(f"unisono · {partition} · {target} · {client_id}")
        self.paused = False
        self._presence = client.presence(partition)
        self._shown_at: str | None = None
        self._news = asyncio.Event()
        self.outline_view = OutlineView()
        self._rejected = RejectedPanel()
        self._title_line = TitleLine()
        self._here = Static(id="here", markup=False)
        self._here.display = False
        self._status = Static(id="status", markup=False)

    def compose(self) -> ComposeResult:
        yield Static(self.title, id="heading", markup=False)
        yield self._here
        yield self.outline_view
        yield self._rejected
        yield self._title_line
        yield self._status
        yield KeyLine()

    async def on_mount(self) -> None:
        news = (self.client.changes(self.partition), self.client.statuses(), self._presence.changes())
        self.screen.set_focus(self.outline_view)
        await self.draw()
        with contextlib.suppress(ClientError):
            await self._presence.set(cursor_at(self.target, None))
        for each in news:
            self.run_worker(self._hear(each))
        self.run_worker(self._keep_drawing())

    async def on_event(self, event: events.Event) -> None:
        """Keys are taken in the order of typing, however fast: the title line has done with one before the next."""
        await super().on_event(event)
        if isinstance(event, events.Key) and self.focused is self._title_line:
            done = asyncio.Event()
            if self._title_line.call_later(done.set):
                await done.wait()

    # -- seeing --------------------------------------------------------------------------------------------------

    async def _hear(self, news: AsyncIterable[object]) -> None:
        async for _ in news:
            self._news.set()

    async def _keep_drawing(self) -> None:
        """Redraw once for all changes that have come meanwhile."""
        while True:
            await self._news.wait()
            self._news.clear()
            await self.draw()

    async def draw(self) -> None:
        """Draw the client's present view and status."""
        pending = await self._touched_by_drafts()
        outline = read(self.client.view(self.partition), self.target)
        self.outline_view.show(outline, pending)
        others = self._presence.others
        self._here.update(who_is_here(others, self.target, outline))
        self._here.display = bool(others)
        self._rejected.show(self.client.rejected(), outline)
        self._status.update(status_line(self.client.status, self.partition, self.paused))

    async def _touched_by_drafts(self) -> frozenset[str]:
        """The items with changes that the server has not answered."""
        try:
            drafts = await self.client.pending()
        except ClientError:
            return self.outline_view.pending  # the client has stopped for good: its status says why
        ids = (
            edits.touched(draft.event, self.target) for draft in drafts if self.partition in draft.partitions
        )
        return frozenset(id for id in ids if id is not None)

    async def on_outline_view_moved(self) -> None:
        """Tell the others which item is selected here."""
        selected = self.outline_view.selected
        if selected != self._shown_at:
            self._shown_at = selected
            with contextlib.suppress(ClientError):
                await self._presence.set(cursor_at(self.target, selected))

    # -- editing -------------------------------------------------------------------------------------------------

    def action_add(self) -> None:
        row = self.outline_view.row
        self._ask_for_new(
            "new item" if row is None else f"new item after {quoted(row.title)}", edits.add_after
        )

    def action_add_child(self) -> None:
        row = self.outline_view.row
        self._ask_for_new("new item" if row is None else f"new item in {quoted(row.title)}", edits.add_into)

    def _ask_for_new(self, question: str, addition: Addition) -> None:
        self._title_line.ask(question, "", partial(self._add, addition, self.outline_view.selected))

    async def _add(self, addition: Addition, beside: str | None, title: str) -> None:
        id = new_id()
        if await self._submit(addition(self.outline_view.outline, beside, id, title)):
            self.outline_view.select(id)

    def action_rename(self) -> None:
        row = self.outline_view.row
        if row is not None:
            question = f"rename {quoted(row.title)}"
            self._title_line.ask(question, blank_controls(row.title), partial(self._rename, row.id))

    async def _rename(self, id: str, title: str) -> None:
        outline = self.outline_view.outline
        row, event = outline.find(id), edits.rename(outline, id, title)
        if row is None:
            self._say("this item was deleted meanwhile")
        elif event is not None and title != blank_controls(row.title).strip():
            await self._submit(event)

    async def action_delete(self) -> None:
        row = self.outline_view.row
        if row is None:
            return
        if row.below:
            question = f"Delete {quoted(row.title)} with all below it ({row.below})?"
            self.push_screen(Confirm(question), partial(self._delete, row.id))
        else:
            await self._delete(row.id, True)

    async def _delete(self, id: str, sure: bool | None) -> None:
        event = edits.delete(self.outline_view.outline, id)
        if sure and event is not None:
            await self._submit(event)

    async def action_move_up(self) -> None:
        await self._edit(edits.move_up, "it is the first here")

    async def action_move_down(self) -> None:
        await self._edit(edits.move_down, "it is the last here")

    async def action_indent(self) -> None:
        await self._edit(edits.indent, "there is no item before it to put it in")

    async def action_outdent(self) -> None:
        await self._edit(edits.outdent, "it is at the top already")

    async def _edit(self, edit: Edit, otherwise: str) -> None:
        selected = self.outline_view.selected
        if selected is None:
            return
        event = edit(self.outline_view.outline, selected)
        if event is None:
            self._say(otherwise)
        elif await self._submit(event):
            self.outline_view.select(selected)

    async def _submit(self, event: JsonObject) -> bool:
        """Make a draft of it and show it; False, with the reason on the screen, when it was refused at once."""
        try:
            await self.client.submit([self.partition], event)
        except ClientError as error:
            self._say(str(error), wrong=True)
            return False
        await self.draw()
        return True

    # -- being on and off line -----------------------------------------------------------------------------------

    async def action_go_online_or_offline(self) -> None:
        try:
            if self.paused or self.client.status.stopped is not None:
                self.paused = False
                await self.client.resume()
            else:
                self.paused = True
                await self.client.pause()
        except ClientError as error:
            self._say(str(error), wrong=True)
        await self.draw()

    # -- refused drafts ------------------------------------------------------------------------------------------

    def action_focus_rejected(self) -> None:
        if self.client.rejected():
            self.screen.set_focus(self._rejected)
        else:
            self._say("nothing was rejected")

    def action_focus_outline(self) -> None:
        self.screen.set_focus(self.outline_view)

    async def action_discard(self) -> None:
        await self._decide(self.client.discard)

    async def action_retry(self) -> None:
        await self._decide(self._retry)

    async def _decide(self, decision: Callable[[str], Awaitable[None]]) -> None:
        chosen = self._rejected.chosen
        if chosen is None:
            return
        try:
            await decision(chosen)
        except ClientError as error:
            self._say(f"still refused: {error}", wrong=True)
        await self.draw()
        if not self.client.rejected():
            self.screen.set_focus(self.outline_view)

    async def _retry(self, id: str) -> None:
        """The same again; an addition whose place is gone gets another one instead."""
        try:
            await self.client.retry(id)
        except InvalidEvent:
            (rejected,) = (each for each in self.client.rejected() if each.id == id)
            again = edits.add_anew(self.outline_view.outline, rejected.event)
            if again is None:
                raise
            await self.client.submit(rejected.partitions, again)
            await self.client.discard(id)
            self._say("its place is gone: added at the end")

    def _say(self, message: str, *, wrong: bool = False) -> None:
        self.notify(
            blank_controls(message), severity="error" if wrong else "information", timeout=4, markup=False
        )
