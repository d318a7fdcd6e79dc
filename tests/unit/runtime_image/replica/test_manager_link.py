"""The replica's control link and its loss."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime_image.contract.control import CONTROL_SOCKET, Hello
from runtime_image.contract.link import VERSION, Kind
from runtime_image.link.frames import Frame, LinkError, pack
from runtime_image.link.socket_end import SocketEnd
from runtime_image.replica import manager_link
from runtime_image.replica.loop import Loop
from runtime_image.replica.manager_link import ManagerLink
from tests.support.blocking import BlockingLink, in_loop, turning

HELLO: Hello = {
    "token": "secret",
    "version": VERSION,
    "pid": 7,
    "features": [],
    "dial": 1,
    "bound": "default/digits@1",
    "phases": {},
}


class Rig:
    """A control link whose other end is `manager`."""

    def __init__(self, run_dir: Path, orphan_s: float) -> None:
        self.run_dir = run_dir
        self.frames: list[Frame] = []
        self.orphaned = threading.Event()
        self.loop = Loop(time.monotonic)
        ours, theirs = socket.socketpair()
        self.manager = BlockingLink(theirs)
        self.link = ManagerLink(
            self.loop,
            run_dir,
            SocketEnd(ours),
            orphan_s=orphan_s,
            hello=lambda dial: {**HELLO, "dial": dial},
            on_frame=self._handle,
            orphaned=self.orphaned.set,
        )
        self.loop.turn_end = self.link.flush

    def _handle(self, frame: Frame) -> None:
        if frame.kind is Kind.REQUEST:
            raise LinkError("not here")
        self.frames.append(frame)
        self.link.send(pack(Kind.PONG, aux=frame.aux))

    def close(self) -> None:
        if self.link._end is not None:
            self.link._end.close()
        self.manager.close()


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setattr(manager_link, "RECONNECT_S", 0.001)
    made = Rig(tmp_path, orphan_s=60.0)
    with turning(made.loop):
        yield made
    made.close()


def test_frames_are_handed_on_and_answered(rig: Rig) -> None:
    """Frames from the manager reach the replica, and its answers leave at the end of the turn."""
    rig.manager.send(Kind.PING, aux=3)

    assert rig.manager.next(Kind.PONG).aux == 3
    assert [frame.kind for frame in rig.frames] == [Kind.PING]


@pytest.mark.parametrize("how", ["closed", "broken"])
def test_a_new_manager_is_greeted(rig: Rig, how: str) -> None:
    """However the link ended, the replica retries until a manager listens, and sends HELLO
    first."""
    if how == "broken":
        rig.manager.send(Kind.REQUEST)
    else:
        rig.manager.close()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(rig.run_dir / CONTROL_SOCKET))
        listener.listen()
        sock, _ = listener.accept()
        manager = BlockingLink(sock)

        hello = json.loads(manager.next(Kind.HELLO).body)
        manager.send(Kind.PING, aux=9)

        assert hello == {**HELLO, "dial": 2}
        assert manager.next(Kind.PONG).aux == 9
        assert not rig.orphaned.is_set()
        manager.close()


def test_frames_without_a_manager_are_dropped(rig: Rig) -> None:
    """Frames sent without a manager are dropped; the next manager gets the full state in HELLO."""
    rig.manager.close()

    in_loop(rig.loop, lambda: None)
    in_loop(rig.loop, lambda: rig.link.send(pack(Kind.NOT_IDLE)))

    assert not rig.orphaned.is_set()


def test_an_orphan_is_notified_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After `orphan_s` without a listener the replica is notified once and stops retrying."""
    monkeypatch.setattr(manager_link, "RECONNECT_S", 0.0)
    rig = Rig(tmp_path, orphan_s=0.0)
    with turning(rig.loop):
        rig.manager.close()

        assert rig.orphaned.wait(30)
        assert in_loop(rig.loop, lambda: rig.loop._timers) == []
    rig.close()
