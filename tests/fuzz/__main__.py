"""A target under atheris, which looks for inputs that reach new code: `python -m tests.fuzz codec -runs=250000`.

Atheris is in the extra `fuzz`, for Linux on x86-64. Further arguments are those of libFuzzer.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import atheris

with atheris.instrument_imports(include=["unisono"]):
    from tests.fuzz.targets import INPUTS, TARGETS


def main(name: str, arguments: list[str]) -> None:
    def mutate(data: bytes, size_max: int, seed: int) -> bytes:
        chance = random.Random(seed)
        if chance.random() < 0.5:
            return INPUTS[name](chance)[:size_max]
        changed: bytes = atheris.Mutate(data, size_max)
        return changed

    options: dict[str, Any] = {"custom_mutator": mutate}
    atheris.Setup([sys.argv[0], *arguments], TARGETS[name], **options)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
