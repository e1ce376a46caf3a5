"""What requests of the console say, checked: numbers, texts and paths, each with a bound."""

from __future__ import annotations

import asyncio
from typing import Final, TypeVar

import msgspec
from aiohttp import web

ID_MAX: Final = 2**53 - 1
TEXT_CHARS_MAX: Final = 512
PATH_STEPS_MAX: Final = 200
BODY_S: Final = 10.0

T = TypeVar("T")

_decode_path = msgspec.json.Decoder(tuple[str, ...]).decode


class BadParameter(ValueError):
    """The request is malformed; the text says where."""


def number(request: web.Request, name: str, default: int | None = None, most: int = ID_MAX) -> int:
    text = request.query.get(name)
    if text is None and default is not None:
        return default
    if text is None or not (text.isascii() and text.isdigit() and len(text) <= 16) or int(text) > most:
        raise BadParameter(f"{name}: a whole number up to {most}")
    return int(text)


def text(request: web.Request, name: str) -> str:
    value = request.query.get(name, "")
    if len(value) > TEXT_CHARS_MAX:
        raise BadParameter(f"{name}: at most {TEXT_CHARS_MAX} characters")
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise BadParameter(f"{name}: is no valid text")
    return value


def path(request: web.Request, name: str) -> tuple[str, ...]:
    """An array of keys, as JSON."""
    try:
        steps = _decode_path(request.query.get(name, ""))
    except (msgspec.MsgspecError, UnicodeEncodeError):
        raise BadParameter(f"{name}: an array of texts, as JSON") from None
    if len(steps) > PATH_STEPS_MAX:
        raise BadParameter(f"{name}: at most {PATH_STEPS_MAX} steps")
    return steps


async def body(request: web.Request, form: type[T]) -> T:
    """The body, which must arrive within BODY_S; its size is bounded by the admin port."""
    try:
        async with asyncio.timeout(BODY_S):
            content = await request.read()
    except TimeoutError:
        raise BadParameter(f"the body did not arrive within {BODY_S:g} s") from None
    try:
        return msgspec.json.decode(content, type=form)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadParameter(f"the body: {error}") from None
