"""Panels around the outline: the title line, the refused drafts, the question before deleting."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from unisono.client import Rejected
from unisono.terminal.outline import Outline
from unisono.terminal.status_text import rejection

Then = Callable[[str], Awaitable[None]]
"""What is to be done with the title a person typed."""


class KeyLine(Static):
    """The keys that work now, in one line of text: it changes while a title is entered."""

    DEFAULT_CSS = """
    KeyLine { height: 1; padding: 0 1; background: $panel; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._draw)

    def _draw(self, screen: Screen[object]) -> None:
        keys: dict[str, dict[str, None]] = {}
        for active in screen.active_bindings.values():
            binding = active.binding
            if binding.show:
                label = binding.group.description if binding.group is not None else binding.description
                keys.setdefault(label, {})[binding.key_display or binding.key] = None
        line = Text()
        for label, names in keys.items():
            line.append(" ".join(names), "bold yellow").append(f" {label} ")
        self.update(line)


class TitleLine(Input):
    """The input line for a title; hidden while none is asked for."""

    DEFAULT_CSS = """
    TitleLine { display: none; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "finish(True)", "done"),
        Binding("escape", "finish(False)", "cancel"),
    ]

    def __init__(self) -> None:
        super().__init__(select_on_focus=False)
        self._then: Then | None = None
        self._back: Widget | None = None

    def ask(self, question: str, title: str, then: Then) -> None:
        self._then = then
        self._back = self.screen.focused
        self.border_title = Text(question)
        self.value = title
        self.cursor_position = len(title)
        self.display = True
        self.screen.set_focus(self)

    async def on_key(self, event: events.Key) -> None:
        """End here and now, not when the key has found its binding: what is typed next is not for this line."""
        if event.key in ("enter", "escape"):
            event.stop()
            event.prevent_default()
            await self.action_finish(event.key == "enter")

    async def action_finish(self, done: bool) -> None:
        title, then = self.value.strip(), self._then
        self._then = None
        self.display = False
        self.screen.set_focus(self._back)
        if done and title and then is not None:
            await then(title)


class RejectedPanel(OptionList):
    """The drafts the server refused, with its reasons; hidden while there are none."""

    DEFAULT_CSS = """
    RejectedPanel { display: none; height: auto; max-height: 40%; border: round $error; border-title-color: $error; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("d,delete", "app.discard", "discard", key_display="d"),
        Binding("r", "app.retry", "retry"),
        Binding("escape", "app.focus_outline", "back"),
    ]

    def __init__(self) -> None:
        super().__init__(markup=False)
        self._shown: tuple[Rejected, ...] = ()

    def show(self, rejected: Sequence[Rejected], outline: Outline) -> None:
        if tuple(rejected) == self._shown:
            return
        chosen, place = self.chosen, self.highlighted or 0
        self._shown = tuple(rejected)
        self.border_title = f"rejected: {len(rejected)}"
        self.set_options(Option(rejection(each, outline), id=each.id) for each in rejected)
        self.display = bool(rejected)
        if rejected:
            ids = [each.id for each in rejected]
            self.highlighted = ids.index(chosen) if chosen in ids else min(place, len(ids) - 1)

    @property
    def chosen(self) -> str | None:
        """The id of the draft that is highlighted."""
        option = self.highlighted_option
        return None if option is None else option.id


class Confirm(ModalScreen[bool]):
    """One question, answered by yes or no."""

    DEFAULT_CSS = """
    Confirm { align: center middle; }
    Confirm > Static {
        width: auto; max-width: 90%; height: auto; padding: 1 2; border: round $warning; background: $surface;
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y,enter", "dismiss(True)", "yes", key_display="y", priority=True),
        Binding("n,escape", "dismiss(False)", "no", key_display="n", priority=True),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        yield Static(f"{self._question}\n\ny yes   n no", markup=False)
