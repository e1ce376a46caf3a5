"""Models that come with Unisono, to start from."""

from __future__ import annotations

from pathlib import Path


def sample_model(name: str = "outline") -> Path:
    """The directory of a model: `outline` has notes, a title, and trees to arrange things in; `board` has lists and
    cards, reduced by data alone, for clients in any language; `roles` has cards, and members with roles."""
    return Path(__file__).parent / name
