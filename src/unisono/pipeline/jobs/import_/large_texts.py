"""Texts of large events: in a file beside the rows, so that Java only sorts and exchanges small rows.

Spark fills its batches by rows, thousands at a time, whatever their size, so rows of a megabyte need gigabytes of
memory. The task that reads a split writes large texts to `NAME.texts`, each compressed, one after the other. In their
place the column `event` has a reference, `NAME:OFFSET:STORED:LENGTH`. It begins with a digit, a text with a brace.
Texts are read again where their events are judged, rejected and loaded.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO, Final

import pyarrow as pa

from unisono.pipeline.errors import PipelineError

INLINE_BYTES_MAX: Final = 4 << 10
"""Larger texts are kept beside the rows: 8,192 rows, as many as Spark gives to Python at once, are 32 MiB at most."""

FILES_OPEN_MAX: Final = 64
"""Open files of texts in a process; a split has one."""

_codec: Final = pa.Codec("zstd", compression_level=1)


class LargeTextWriter:
    """Writes the large texts of one split; there is no file while there are none."""

    def __init__(self, folder: str, name: str) -> None:
        self._path = Path(folder, f"{name}.texts")
        self._name = name
        self._file: BinaryIO | None = None
        self._end = 0

    def put(self, text: bytes) -> bytes:
        """What stands in the row: the text, or a reference to it."""
        if len(text) <= INLINE_BYTES_MAX:
            return text
        if self._file is None:
            self._file = self._path.open("wb")
        stored: bytes = _codec.compress(text, asbytes=True)
        self._file.write(stored)
        reference = f"{self._name}:{self._end}:{len(stored)}:{len(text)}"
        self._end += len(stored)
        return reference.encode()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class LargeTexts:
    """Reads the texts of all splits of an import; opens files when they are needed."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._files: dict[str, int] = {}

    def __enter__(self) -> LargeTexts:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    def text(self, event: str) -> bytes:
        """The text of an event, of which a row has the text or a reference."""
        if event.startswith("{"):
            return event.encode()
        name, *numbers = event.split(":")
        offset, stored, length = map(int, numbers)
        content = os.pread(self._file(name), stored, offset)
        if len(content) != stored:
            raise self._unusable(name, f"it ends at {offset + len(content)}")
        try:
            text: bytes = _codec.decompress(content, length, asbytes=True)
        except (OSError, pa.ArrowException) as error:
            raise self._unusable(name, str(error)) from error
        return text

    def _file(self, name: str) -> int:
        descriptor = self._files.get(name)
        if descriptor is None:
            if len(self._files) >= FILES_OPEN_MAX:
                os.close(self._files.pop(next(iter(self._files))))
            try:
                descriptor = self._files[name] = os.open(self._folder / f"{name}.texts", os.O_RDONLY)
            except OSError as error:
                raise self._unusable(name, str(error)) from error
        return descriptor

    def _unusable(self, name: str, why: str) -> PipelineError:
        place = self._folder / f"{name}.texts"
        return PipelineError(
            f"{place} cannot be used ({why}): remove {self._folder.parent} and run this again"
        )
