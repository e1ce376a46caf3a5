"""What holds for every test."""

from __future__ import annotations

from hypothesis import settings

# Hypothesis fails an example that takes 200 ms: how busy the machine is, is no property of the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
