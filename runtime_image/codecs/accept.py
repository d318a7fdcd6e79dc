"""Content negotiation: chooses an answer's form from the Accept header and the request's form.

Source: RFC 9110, sections 5.6.6 (parameters), 12.4.2 (quality values) and 12.5.1 (Accept).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal

from runtime_image.codecs.tensors import shorten
from runtime_image.contract.errors import NOT_ACCEPTABLE, RequestError
from runtime_image.contract.signature import Signature

JSON: Final = "application/json"
OCTETS: Final = "application/octet-stream"
NPY: Final = "application/x-npy"
OIP: Final = "application/vnd.fngate.oip"
"""The gateway's content type for requests to /v2, in either form of the Open Inference Protocol:
their own Content-Type does not matter there."""

_NOT_IN_NPY: Final = frozenset({"BYTES", "BF16"})
_RANGES_MAX: Final = 32
_CACHED: Final = 256
_CACHED_LENGTH: Final = 256
"""Max characters of a text that is cached: a client may send long ones that all differ."""


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """Form of an answer's body.

    `tensor` is the output in an npy answer, "" for the first. `outputs` are the outputs in an Open
    Inference Protocol answer, in order, () for all. `binary` names the outputs that are sent raw;
    `binary_all` stands for all of them. `classes` are the outputs that are sent as their best
    classes, with the number of these.
    """

    form: Literal["short", "oip", "oip-binary", "npy"]
    tensor: str = ""
    outputs: tuple[str, ...] = ()
    binary: tuple[str, ...] = ()
    binary_all: bool = False
    classes: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class MediaRange:
    """A range of a header Accept (RFC 9110 section 12.5.1)."""

    type: str
    """In lower case."""
    quality: float
    """From 0 to 1."""
    parameters: dict[str, str]
    """By names in lower case. Cached and shared between calls: do not modify it."""


SHORT: Final = AnswerForm("short")


def choose(accept: str, default: AnswerForm, signature: Signature) -> AnswerForm:
    """Return the form with the highest quality, `default` among equals.

    `default` is the form that the request implies. Raises NOT_ACCEPTABLE with the possible types.
    """
    if not accept or accept == "*/*" or (accept == JSON and default is SHORT):
        return default
    offers = _offers(default, signature)
    media, parameters = best_of(accept, offers)
    best = offers[media]
    return _npy(best, parameters, signature) if best.form == "npy" else best


def best_of(accept: str, offers: Collection[str]) -> tuple[str, dict[str, str]]:
    """Return the media type of the highest quality, the first of `offers` among equals, and the
    parameters of its range. Raises NOT_ACCEPTABLE with the offers."""
    ranges = media_ranges(accept)
    best, quality, parameters = "", 0.0, dict[str, str]()
    for media in offers:
        found = _match(media, ranges)
        if found is not None and found.quality > quality:
            best, quality, parameters = media, found.quality, found.parameters
    if not quality:
        raise _refusal(", ".join(offers), accept)
    return best, parameters


def media_ranges(accept: str) -> tuple[MediaRange, ...]:
    """Return the valid ranges of a header Accept, at most _RANGES_MAX."""
    return (_known_ranges if len(accept) <= _CACHED_LENGTH else _ranges)(accept)


def media_type(text: str) -> tuple[str, dict[str, str]]:
    """Parse a Content-Type or one Accept range: type in lower case, and parameters. Never raises.

    The returned dict is cached and shared between calls: do not modify it.
    """
    return (_known_media_type if len(text) <= _CACHED_LENGTH else _media_type)(text)


def _media_type(text: str) -> tuple[str, dict[str, str]]:
    kind, *rest = text.split(";")
    parameters: dict[str, str] = {}
    for item in rest:
        key, _, value = item.partition("=")
        parameters[key.strip().lower()] = value.strip().strip('"')
    return kind.strip().lower(), parameters


_known_media_type: Final = lru_cache(maxsize=_CACHED)(_media_type)


def _ranges(accept: str) -> tuple[MediaRange, ...]:
    found: list[MediaRange] = []
    for item in accept.split(",")[:_RANGES_MAX]:
        kind, parameters = media_type(item)
        quality = _quality(parameters.get("q", "1"))
        if kind and quality is not None:
            found.append(MediaRange(kind, quality, parameters))
    return tuple(found)


_known_ranges: Final = lru_cache(maxsize=_CACHED)(_ranges)


def _quality(text: str) -> float | None:
    """Return a quality value, None for an invalid one: its range is then ignored."""
    try:
        quality = float(text)
    except ValueError:
        return None
    return quality if 0 <= quality <= 1 else None


def _match(media: str, ranges: tuple[MediaRange, ...]) -> MediaRange | None:
    """Return the most specific range that contains `media`, the first among equals."""
    group = media.partition("/")[0] + "/*"
    for kind in (media, group, "*/*"):
        found = next((item for item in ranges if item.type == kind), None)
        if found is not None:
            return found
    return None


def _offers(default: AnswerForm, signature: Signature) -> dict[str, AnswerForm]:
    """Return the possible answer forms of this request by media type, best first."""
    offers: dict[str, AnswerForm] = {JSON: default}
    if default.form == "oip":
        offers[OCTETS] = replace(default, form="oip-binary", binary_all=True)
    elif default.form == "oip-binary":
        offers = {OCTETS: default, JSON: replace(default, form="oip", binary=(), binary_all=False)}
    if signature.kind == "tensors" and not default.classes:
        first = default.outputs[0] if default.outputs else ""
        offers[NPY] = AnswerForm("npy", tensor=first)
    return offers


def _npy(form: AnswerForm, parameters: dict[str, str], signature: Signature) -> AnswerForm:
    known = {spec.name: spec for spec in signature.outputs}
    name = parameters.get("output") or form.tensor or next(iter(known), "")
    if known and name not in known:
        raise _refusal(f"{NPY} with output= one of {', '.join(known)}", name)
    if known and known[name].dtype in _NOT_IN_NPY:
        raise _refusal(f"{JSON}, or {NPY} of a numeric output", f"{name}: {known[name].dtype}")
    return AnswerForm("npy", tensor=name)


def _refusal(expected: str, got: str) -> RequestError:
    got = shorten(got)
    return RequestError(
        NOT_ACCEPTABLE, f"Accept: expected {expected}, got {got}", expected=expected, got=got
    )
