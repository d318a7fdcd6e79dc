"""Reads request bodies with a limit on size and time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from aiohttp import web

from registry.errors import BadRequest, BodyTimeout, BodyTooLarge

Body = TypeVar("Body", bytes, bytearray)


Room = Callable[[int], memoryview | None]
"""Where a body of so many bytes is to be put, if anywhere in particular."""


async def read_body(request: web.Request, most: int, seconds: float) -> bytes:
    """The whole body. Raises as `receive` does."""
    return bytes(await receive(request, most, seconds, lambda _length: None))


async def receive(
    request: web.BaseRequest, most: int, seconds: float, room: Room
) -> bytes | bytearray | memoryview:
    """The whole body, in `room` if that gives any. Raises BodyTooLarge before reading where the
    length is told.

    Also raises BodyTimeout, and BadRequest where the body is broken off or badly encoded.
    """
    length = request.content_length
    if length is not None and length > most:
        raise _too_large(length, most)
    if not request.can_read_body:
        return b""
    try:
        if request.content.is_eof():  # it came with the head: a timer would be wasted on it
            return _bounded(request.content.read_nowait(), most)
        async with asyncio.timeout(seconds):
            # The length of an encoded body says nothing about the decoded one.
            is_told = length is not None and "Content-Encoding" not in request.headers
            view = room(length) if length is not None and is_told else None
            return await (_read(request, most) if view is None else _fill(request, view))
    except TimeoutError:
        raise BodyTimeout(f"the body did not arrive within {seconds:g} s") from None
    except web.RequestPayloadError as error:
        # Its text is "400, message:", then what is wrong on a line of its own.
        reason = str(error).partition("\n")[2].strip() or "it is broken off"
        raise BadRequest(f"the body cannot be read: {reason[:200]}") from error


async def _read(request: web.BaseRequest, most: int) -> bytearray:
    body = bytearray()
    while not request.content.at_eof():
        body += await request.content.readany()
        _bounded(body, most)
    return body


async def _fill(request: web.BaseRequest, view: memoryview) -> memoryview:
    filled = 0
    while not request.content.at_eof():
        piece = await request.content.readany()
        view[filled : filled + len(piece)] = piece
        filled += len(piece)
    if filled != len(view):
        raise BadRequest(f"the body cannot be read: expected {len(view)} bytes, got {filled}")
    return view


def _bounded(body: Body, most: int) -> Body:
    if len(body) > most:
        raise _too_large(len(body), most)
    return body


def _too_large(got: int, most: int) -> BodyTooLarge:
    return BodyTooLarge(f"expected at most {most} bytes, got {got} or more")
