"""What can go wrong with a lake, each with a text that says what to do."""

from __future__ import annotations


class LakeError(Exception):
    """The lake cannot be used as asked; the step that raised it changed nothing."""


class LakeUnusable(LakeError):
    """There is no lake there, or not one this program can work with."""


class Overtaken(LakeError):
    """Another process changed the same table first; plan again from what is there now."""
