"""Sections of the surface: messages between processes.

Captions stand for classes, whose names do not go over the wire.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import IntEnum
from hashlib import sha256
from struct import Struct
from typing import Any, get_args

from admin.workers.messages import VERSION, Down, LedgerNow, Up
from gateway.http.connected import Connections
from gateway.oip.statistics import RevisionStatistics
from registry.exchange import Demand, Endpoints
from runtime_image.contract import link
from runtime_image.contract.control import (
    PHASES,
    BatchingOff,
    BindRequest,
    Hello,
    Loaded,
    LoadFailed,
    Report,
)
from runtime_image.contract.dtypes import ALL
from runtime_image.contract.link import ANSWER_META, HEADER, SLAB_NOTICE, SLAB_RANGE
from runtime_image.contract.model import PREPARES, Described, ModelSpec, Part
from runtime_image.contract.rows import PROOF
from runtime_image.contract.signature import Signature
from runtime_image.link.meta import AnswerMeta, RequestMeta
from runtime_image.link.record import EXIT_BAD_RECORD, EXIT_OTHER_LINK
from runtime_image.replica.main import EXIT_ORPHANED
from runtime_image.replica.serving import EXIT_STUCK
from runtime_image.replica.worker import EXIT_FAULT
from tests.surface import source
from tests.surface.shapes import fields_of

CONTROL: dict[str, Any] = {
    "HELLO": Hello,
    "BIND": BindRequest,
    "BIND.spec": ModelSpec,
    "LOADED": Loaded,
    "LOADED.report": Report,
    "LOADED.report.signature": Signature,
    "LOAD_FAILED": LoadFailed,
    "BATCHING_OFF": BatchingOff,
    "PART description": Described,
    "REQUEST meta": RequestMeta,
    "RESPONSE meta": AnswerMeta,
}
"""Bodies of frames, by the frame's name."""
LAYOUTS: dict[str, Struct] = {
    "header": HEADER,
    "place": SLAB_RANGE,
    "slab notice": SLAB_NOTICE,
    "RESPONSE meta": ANSWER_META,
}
NUMBERS: dict[str, type[IntEnum]] = {
    "frame": link.Kind,
    "flag": link.Flag,
    "not started": link.NotStarted,
    "part": Part,
}
EXITS = {
    "a thread failed": EXIT_FAULT,
    "its record cannot be read": EXIT_BAD_RECORD,
    "its run does not end": EXIT_STUCK,
    "no manager": EXIT_ORPHANED,
    "the link has another version": EXIT_OTHER_LINK,
}
EXCHANGE: dict[str, Any] = {"demand": Demand, "endpoints": Endpoints}
ANSWERS: dict[str, Any] = {
    "answer ReadLedger": LedgerNow,
    "answer ListConnections": Connections,
    "answer ReadStatistics": RevisionStatistics,
}
"""Answers to questions that have one, by the question."""
PROTOCOL = "gateway protocol version"
PROTOCOL_LINE = re.compile(rf"^{PROTOCOL} (?P<version>\d+) [0-9a-f]+$", re.MULTILINE)


def _all(kinds: dict[str, Any]) -> Iterator[str]:
    for caption, kind in kinds.items():
        yield from fields_of(caption, kind)


def replicas() -> list[str]:
    """List version, layouts, numbers and frame bodies of the link to replicas, and their exit
    codes."""
    found = [f"version {link.VERSION}", f"proof {PROOF}", f"LOADED.report.{PREPARES}?: bool"]
    found += [f"exit {number} {how}" for how, number in EXITS.items()]
    found += [f"JSON key {key}" for key in source.json_keys()]
    found += [f"phase {place} {name}" for place, name in enumerate(PHASES)]
    found += [f"dtype {name}" for name in ALL]
    found += [f"answer type {n} {name}" for n, name in enumerate(link.CONTENT_TYPES)]
    found += [f"layout {caption} {one.format}" for caption, one in LAYOUTS.items()]
    for caption, kind in NUMBERS.items():
        found += [f"{caption} {one.value:02} {one.name}" for one in kind]
    return [*found, *_all(CONTROL)]


def gateways() -> list[str]:
    """List the messages between gateway and manager, and those of the gateway protocol by their
    tags, with its version and a digest of all of them."""
    found = _gateway_messages()
    digest = sha256("\n".join(sorted(set(found))).encode()).hexdigest()[:16]
    return [f"{PROTOCOL} {VERSION} {digest}", *found]


def check_version(written: str, now: str) -> None:
    """Raise ValueError if two surfaces have different messages of gateways under one version."""
    before, after = (PROTOCOL_LINE.search(one) for one in (written, now))
    if before and after and before["version"] == after["version"] and before[0] != after[0]:
        raise ValueError(
            f"messages between server and gateways have changed under version {after['version']}:"
            " raise VERSION in admin/workers/messages.py, as both ends must speak the same one"
        )


def _gateway_messages() -> list[str]:
    found = [*_all(EXCHANGE), *_all(ANSWERS)]
    for way, kinds in (("down", Down), ("up", Up)):
        for kind in get_args(kinds):
            config = kind.__struct_config__
            found += fields_of(f"{way} {config.tag}", kind)
    return found
