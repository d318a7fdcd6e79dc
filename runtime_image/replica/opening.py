"""Opens the links of a replica, by its record: to a manager on this machine or on another one."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from runtime_image.contract.control import Hello, ReplicaRecord
from runtime_image.link.data_listener import bind_data
from runtime_image.link.frames import Frame
from runtime_image.replica.loop import Loop
from runtime_image.replica.manager_link import ControlLink, ManagerLink, connect


class Links(NamedTuple):
    """The control link, the listener of data links, and frames that came with the handshake.
    `guard` is to be called between reading and accepting something new; None: it is not needed."""

    manager: ControlLink
    listener: socket.socket
    frames: list[Frame]
    guard: Callable[[], None] | None


def open_links(
    loop: Loop,
    run_dir: Path,
    record: ReplicaRecord,
    *,
    hello: Callable[[int], Hello],
    on_frame: Callable[[Frame], None],
    orphaned: Callable[[], None],
) -> Links:
    """Greet the manager, blocking. `hello(dial)` returns HELLO with the whole state; `orphaned` is
    called once, without a manager for `orphan_s`. Raises LinkError if the manager refuses, OSError
    if it is gone."""
    if not record.data:
        end, listener, frames = connect(run_dir, hello(1))
        local = ManagerLink(
            loop,
            run_dir,
            end,
            orphan_s=record.orphan_s,
            hello=hello,
            on_frame=on_frame,
            orphaned=orphaned,
        )
        return Links(local, listener, frames, None)
    from runtime_image.replica.remote_link import RemoteLink  # not needed on this machine

    listener = bind_data(record.data)
    remote = RemoteLink(loop, record, hello=hello, on_frame=on_frame, orphaned=orphaned)
    return Links(remote, listener, remote.greet(), remote.guard)
