"""Transfer of prepared files from a trial."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime_image.contract.addresses import TlsAddress
from runtime_image.contract.enrolment import SERVER_NAME
from runtime_image.contract.link import Kind
from runtime_image.contract.model import GRAPH_FILE, PART_MAX, WEIGHTS_FILE, Described, Part
from runtime_image.link.frames import Frame, FrameReader, LinkError, pack
from runtime_image.link.tls_listener import TlsListener
from runtime_image.verification.transfer import serve_parts
from tests.support.blocking import BlockingLink
from tests.support.small_authority import SmallAuthority

WAIT_S = 60.0
WEIGHTS = bytes(range(256)) * 6144
"""One and a half parts."""

NAME = "aaaa0001.replica.fngate"
FILES = {Part.GRAPH: GRAPH_FILE, Part.WEIGHTS: WEIGHTS_FILE, Part.OPTIMISED: "optimised"}
CONTENTS = {Part.GRAPH: b"graph", Part.WEIGHTS: WEIGHTS, Part.OPTIMISED: b"candidate"}


class Peer:
    """The requesting side; `ended` is the outcome of `serve_parts`, `descriptions` counts
    its calls."""

    def __init__(self, folder: Path, described: Described, *parts: Part) -> None:
        self.descriptions = 0
        self._described = described
        self._parts = {int(part): folder / FILES[part] for part in parts}
        self._path = folder / "data.sock"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self._path))
        listener.listen()
        self.ended: list[Exception | None] = []
        self._thread = threading.Thread(target=self._serve, args=(listener,))
        self._thread.start()
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.settimeout(WAIT_S)
        self._sock.connect(str(self._path))
        self._reader = FrameReader()

    def _serve(self, listener: socket.socket) -> None:
        try:
            with listener:
                serve_parts(listener, self._describe, self._parts)
            self.ended.append(None)
        except (LinkError, OSError) as error:
            self.ended.append(error)

    def _describe(self) -> Described:
        self.descriptions += 1
        return self._described

    def ask(self, kind: Kind, aux: int, id: int = 7) -> list[Frame]:
        """Request a part; return its frames including END, fewer if the other side closes."""
        self._sock.sendall(b"".join(pack(kind, id, aux=aux)))
        frames: list[Frame] = []
        while not frames or frames[-1].kind is not Kind.END:
            count = self._sock.recv_into(self._reader.buffer())
            if not count:
                break
            frames += self._reader.received(count)
        return frames

    def close(self) -> None:
        """Close, and wait until the other side has noticed."""
        self._sock.close()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()


@pytest.fixture
def described() -> Described:
    return {"why_not": "", "sizes": [5, len(WEIGHTS)]}


@pytest.fixture
def peer(tmp_path: Path, described: Described) -> Iterator[Peer]:
    for part, content in CONTENTS.items():
        (tmp_path / FILES[part]).write_bytes(content)
    made = Peer(tmp_path, described, *CONTENTS)
    yield made
    made.close()


def content(frames: list[Frame]) -> bytes:
    return b"".join(frame.body for frame in frames)


def test_every_part_can_be_had(peer: Peer, described: Described) -> None:
    """Each part is sent under the id of its request, in pieces of at most 1 MiB."""
    said: Any = json.loads(content(peer.ask(Kind.FETCH, Part.DESCRIPTION)))
    graph = peer.ask(Kind.FETCH, Part.GRAPH, id=8)
    weights = peer.ask(Kind.FETCH, Part.WEIGHTS, id=9)
    peer.close()

    assert said == described
    assert [(frame.kind, frame.id) for frame in graph] == [(Kind.PART, 8), (Kind.END, 8)]
    assert content(graph) == b"graph"
    assert [len(frame.body) for frame in weights] == [PART_MAX, PART_MAX // 2, 0]
    assert content(weights) == WEIGHTS
    assert peer.ended == [None]


@pytest.mark.parametrize(("kind", "aux"), [(Kind.REQUEST, 0), (Kind.FETCH, 4)])
def test_anything_else_ends_it(peer: Peer, kind: Kind, aux: int) -> None:
    """A trial serves no other requests, and a part of another number does not exist."""
    assert peer.ask(kind, aux) == []
    peer.close()

    assert isinstance(peer.ended[0], LinkError)


def test_files_that_were_not_made_are_not_served(tmp_path: Path) -> None:
    """If preparation only gave a reason, there is no part to request."""
    peer = Peer(tmp_path, {"why_not": "too small"})

    assert json.loads(content(peer.ask(Kind.FETCH, Part.DESCRIPTION))) == {"why_not": "too small"}
    assert peer.ask(Kind.FETCH, Part.GRAPH) == []
    peer.close()


def test_a_candidate_is_sent_before_anything_is_described(peer: Peer) -> None:
    """The description may take minutes to make, or end the process: it is made on request only."""
    assert content(peer.ask(Kind.FETCH, Part.OPTIMISED)) == b"candidate"
    before = peer.descriptions
    peer.ask(Kind.FETCH, Part.DESCRIPTION)
    peer.close()

    assert (before, peer.descriptions) == (0, 1)


def test_files_of_a_trial_travel_over_tls(tmp_path: Path) -> None:
    """The listener of a replica that dials in serves the server, after its greeting."""
    (tmp_path / "weights").write_bytes(WEIGHTS)
    authority = SmallAuthority()
    sock = socket.create_server(("127.0.0.1", 0))
    listener = TlsListener(sock, authority.credentials(NAME))
    address = TlsAddress(*sock.getsockname(), NAME)
    parts = {int(Part.WEIGHTS): tmp_path / "weights"}
    serving = threading.Thread(target=serve_parts, args=(listener, lambda: {}, parts, "greeting"))
    serving.start()
    link = BlockingLink(authority.credentials(SERVER_NAME).dial(address, WAIT_S))
    assert link.next(Kind.WELCOME).body == b"greeting"

    link.send(Kind.FETCH, 7, aux=Part.WEIGHTS)
    body = b""
    while (frame := link.next()).kind is Kind.PART:
        body += frame.body

    assert body == WEIGHTS
    link.sock.shutdown(socket.SHUT_WR)
    serving.join(WAIT_S)
    link.close()
    listener.close()
