"""Models that come with Unisono, to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Final

SAMPLES: Final = ("starter", "outline", "board", "roles")


def sample_model(name: str = "outline") -> Path:
    """The directory of a model.

    `starter` has tasks and little else; `outline` has notes, a title, and trees to arrange things in; `board` has
    lists and cards, reduced by data alone, for clients in any language; `roles` has cards, and members with roles.
    """
    return Path(__file__).parent / name
