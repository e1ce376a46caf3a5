"""Models that come with Unisono, to start from."""

from __future__ import annotations

from pathlib import Path


def sample_model() -> Path:
    """The directory of the outline model: notes, a title, and trees to arrange things in."""
    return Path(__file__).parent / "outline"


def board_model() -> Path:
    """The directory of the board model: lists and cards, reduced by data alone, for clients in any language."""
    return Path(__file__).parent / "board"
