"""The outline on the screen: rows drawn line by line, one of them selected, some folded away."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Final

from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from unisono.display import blank_controls
from unisono.terminal.outline import Outline, OutlineRow, nearest, visible

INDENT: Final = 2
PENDING_MARK: Final = " ○"
EMPTY: Final = "Nothing here yet: press a to add an item."
MOVE: Final = Binding.Group("move")

_key = partial(Binding, priority=True)
"""Taken in the order of typing: what follows a key that opens the title line is typed into that line."""


class OutlineView(ScrollView, can_focus=True):
    """Shows an outline and knows which item is selected.

    Invariants: `selected` is an item of the outline, or None when there is none; nothing above it is folded, so
    it is always among the rows.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {"outline--selected", "outline--mark", "outline--pending"}

    DEFAULT_CSS = """
    OutlineView { height: 1fr; padding: 0 1; overflow-x: hidden; background: $surface; }
    OutlineView > .outline--mark { color: $text-muted; }
    OutlineView > .outline--pending { color: $text-muted; text-style: dim italic; }
    OutlineView > .outline--selected { background: $block-cursor-blurred-background; }
    OutlineView:focus > .outline--selected {
        color: $block-cursor-foreground; background: $block-cursor-background; text-style: $block-cursor-text-style;
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        _key("up,k", "select_by(-1)", "select above", show=False),
        _key("down,j", "select_by(1)", "select below", show=False),
        _key("pageup", "select_page(-1)", "page up", show=False),
        _key("pagedown", "select_page(1)", "page down", show=False),
        _key("home,g", "select_end(0)", "first", show=False),
        _key("end,G", "select_end(-1)", "last", show=False),
        _key("left,h", "fold", "fold, or go to the parent", show=False),
        _key("right,l", "unfold", "unfold, or go to the first child", show=False),
        _key("a", "app.add", "add"),
        _key("c", "app.add_child", "child"),
        _key("r,enter,f2", "app.rename", "rename", key_display="r"),
        _key("d,delete", "app.delete", "delete", key_display="d"),
        _key("tab,greater_than_sign", "app.indent", "indent", key_display="⇥", group=MOVE),
        _key("shift+tab,less_than_sign", "app.outdent", "outdent", key_display="⇧⇥", group=MOVE),
        _key("shift+up,K", "app.move_up", "move up", key_display="⇧↑", group=MOVE),
        _key("shift+down,J", "app.move_down", "move down", key_display="⇧↓", group=MOVE),
    ]

    class Moved(Message):
        """Another item is selected."""

    def __init__(self) -> None:
        super().__init__()
        self.outline = Outline("")
        self.selected: str | None = None
        self.pending: frozenset[str] = frozenset()
        self._folded: set[str] = set()
        self._rows: list[OutlineRow] = []

    # -- what is shown -------------------------------------------------------------------------------------------

    def show(self, outline: Outline, pending: frozenset[str]) -> None:
        """Draw another state: the selection stays with its item, and its item stays in its line."""
        if outline == self.outline and pending == self.pending:
            return
        line = None if self.selected is None else self._place() - self.scroll_offset.y
        if self.selected not in outline.place:
            self.selected = nearest(self._rows, self.selected, outline)
        self.outline, self.pending = outline, pending
        self._folded = {id for id in self._folded if (row := outline.find(id)) is not None and row.below}
        self._lay_out()
        if line is not None and 0 <= line < self.size.height:
            self._scroll(self._place() - line)

    def select(self, id: str | None) -> None:
        """Go to an item, if it is there."""
        if id in self.outline.place:
            self.selected = id
            self.post_message(self.Moved())
            self._lay_out()
            self._keep_in_sight()

    @property
    def row(self) -> OutlineRow | None:
        """What is selected."""
        return self.outline.find(self.selected)

    def _place(self) -> int:
        """The line of the selection, counted from the first row."""
        return next((place for place, row in enumerate(self._rows) if row.id == self.selected), 0)

    def _lay_out(self) -> None:
        if self.selected is not None:
            self._folded.difference_update(self.outline.parents(self.selected))
        self._rows = visible(self.outline, self._folded)
        self.virtual_size = Size(0, len(self._rows))
        self.refresh()

    def _keep_in_sight(self) -> None:
        place, top, height = self._place(), self.scroll_offset.y, self.scrollable_content_region.height
        if place < top:
            self._scroll(place)
        elif place >= top + height:
            self._scroll(place - height + 1)

    def _scroll(self, top: int) -> None:
        # Forced: the scroll bar that allows it comes with the next layout only.
        self.scroll_to(y=top, animate=False, force=True)

    def on_resize(self) -> None:
        self._keep_in_sight()

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        place = y + self.scroll_offset.y
        if place < len(self._rows):
            return self._drawn(self._rows[place], width)
        message = (self.outline.problem or EMPTY) if y == 0 and not self._rows else ""
        return self._strip(Text(message, "dim"), width)

    def _drawn(self, row: OutlineRow, width: int) -> Strip:
        pending = row.id in self.pending
        folded = row.id in self._folded
        mark = "•" if not row.below else "▸" if folded else "▾"
        indent = min(row.depth * INDENT, width // 2)
        end = (f" ({row.below})" if folded else "") + (PENDING_MARK if pending else "")
        title = Text(blank_controls(row.title), self._style("pending") if pending else "")
        title.truncate(max(1, width - indent - 2 - len(end)), overflow="ellipsis")
        line = Text.assemble(
            " " * indent, (f"{mark} ", self._style("mark")), title, (end, self._style("mark"))
        )
        if row.id == self.selected:
            line.pad_right(max(0, width - line.cell_len))
            line.stylize(self._style("selected"))
        return self._strip(line, width)

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"outline--{name}", partial=True)

    def _strip(self, line: Text, width: int) -> Strip:
        segments = line.render(self.app.console)
        return Strip(segments).adjust_cell_length(width).apply_style(self.visual_style.rich_style)

    # -- going about in it ---------------------------------------------------------------------------------------

    def action_select_by(self, step: int) -> None:
        if self._rows:
            place = min(max(self._place() + step, 0), len(self._rows) - 1)
            self.select(self._rows[place].id)

    def action_select_page(self, pages: int) -> None:
        self.action_select_by(pages * max(1, self.size.height - 1))

    def action_select_end(self, end: int) -> None:
        if self._rows:
            self.select(self._rows[end].id)

    def action_fold(self) -> None:
        row = self.row
        if row is None:
            return
        if row.below and row.id not in self._folded:
            self._folded.add(row.id)
            self._lay_out()
        else:
            self.select(row.parent)

    def action_unfold(self) -> None:
        row = self.row
        if row is None or not row.below:
            return
        if row.id in self._folded:
            self._folded.discard(row.id)
            self._lay_out()
        else:
            self.action_select_by(1)

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        place = None if offset is None else offset.y + self.scroll_offset.y
        if place is not None and place < len(self._rows):
            self.select(self._rows[place].id)
