"""Opens the links of a replica: to a manager on this machine, through a tunnel, or over TLS."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from runtime_image.contract.control import Hello, ReplicaRecord
from runtime_image.link.data_listener import DataListener, bind_data
from runtime_image.link.frames import Frame
from runtime_image.replica.dialling import Dialler, UnixDialler
from runtime_image.replica.loop import Loop
from runtime_image.replica.manager_link import ControlLink, ManagerLink, connect

if TYPE_CHECKING:
    from runtime_image.replica.entrance import Enrolment
    from runtime_image.replica.fetching import Dial

EXPIRE_S: Final = 1.0
"""Interval between two looks at handshakes that take too long."""


class Links(NamedTuple):
    """The control link, the listener of data links, and frames that came with the handshake.
    `guard` is to be called between reading and accepting something new; None: it is not needed.
    `connect` dials the server for files; None: they are in the model folder."""

    manager: ControlLink
    listener: DataListener
    frames: list[Frame]
    guard: Callable[[], None] | None
    connect: Dial | None = None


def open_links(  # noqa: PLR0913 - the composition of the replica's parts
    loop: Loop,
    run_dir: Path,
    record: ReplicaRecord,
    *,
    hello: Callable[[int], Hello],
    on_frame: Callable[[Frame], None],
    orphaned: Callable[[], None],
    enrolment: Enrolment | None,
) -> Links:
    """Greet the manager, blocking. `hello(dial)` returns HELLO with the whole state; `orphaned` is
    called once, without a manager for `orphan_s`. `enrolment` is that of a replica that dials in.
    Raises LinkError if the manager refuses, OSError if it is gone."""
    if not record.data:
        end, passed, frames = connect(run_dir, hello(1))
        passed.set_inheritable(False)
        local = ManagerLink(
            loop,
            run_dir,
            end,
            orphan_s=record.orphan_s,
            hello=hello,
            on_frame=on_frame,
            orphaned=orphaned,
        )
        return Links(local, passed, frames, None)
    from runtime_image.replica.remote_link import RemoteLink  # not needed on this machine

    listener: DataListener
    dialler: Dialler
    dial: Dial | None = None
    if enrolment is None:
        listener, dialler = bind_data(record.data), UnixDialler(record.control)
    else:
        import runtime_image.replica.fetching  # noqa: F401 - imported ahead of BIND
        from runtime_image.replica.tls_dialling import DIAL_S

        credentials, listener, door = enrolment.credentials, enrolment.listener, enrolment.dialler
        dialler, dial = door, lambda: credentials.dial(door.address, DIAL_S)
        _expire(loop, enrolment)
    remote = RemoteLink(
        loop, dialler, record.orphan_s, hello=hello, on_frame=on_frame, orphaned=orphaned
    )
    return Links(remote, listener, remote.greet(), remote.guard, dial)


def _expire(loop: Loop, enrolment: Enrolment) -> None:
    """End handshakes that take too long, now and again later."""
    enrolment.listener.expire()
    loop.after(EXPIRE_S, partial(_expire, loop, enrolment))
