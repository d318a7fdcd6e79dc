"""A real replica process that dials in over TLS; the test is its server and its gateways."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from runtime_image.contract.control import RECORD_FILE
from runtime_image.contract.enrolment import ENTRANCE_FILE, replica_name
from runtime_image.contract.link import Kind
from runtime_image.contract.model import ModelSpec
from runtime_image.contract.server import ServerSpec
from tests.support.blocking import BlockingLink
from tests.support.remote_replica import GREETING, SPEC, RemoteReplica
from tests.support.small_door import SmallDoor


class DialInReplica(RemoteReplica):
    """As `RemoteReplica`, with a door instead of sockets of the machine."""

    def __init__(
        self, root: Path, spec: ModelSpec | ServerSpec = SPEC, *, door_epoch: int = 1, **more: Any
    ) -> None:
        super().__init__(root, spec, **more)
        (self.run_dir / RECORD_FILE).unlink()
        self.door = SmallDoor(self.record, epoch=door_epoch)
        self.write_entrance()

    @property
    def data_address(self) -> str:
        """The address with the name of the replica, once it has enrolled."""
        return str(self.door.data._replace(name=replica_name(self.record.id)))

    def write_entrance(self, **changes: Any) -> None:
        """Write the entrance, with these fields changed."""
        text = json.dumps({**self.door.entrance(), **changes})
        (self.run_dir / ENTRANCE_FILE).write_text(text)

    def listen(self) -> None:  # type: ignore[override]
        """Open the door, if it is shut."""
        self.deafen()
        self.door.open()

    def deafen(self) -> None:
        """Shut the door: no server."""
        if hasattr(self, "door"):
            self.door.shut()

    def dialled(self) -> tuple[BlockingLink, dict[str, Any]]:
        """Return the next control link, and its HELLO."""
        return self.door.link()

    def connect(self) -> BlockingLink:
        """Dial the replica as a gateway, and read the greeting."""
        link = BlockingLink(self.door.dial())
        assert link.next(Kind.WELCOME).body == GREETING.encode()
        return link

    def stranger(self) -> socket.socket:
        """Connect to the data listener as a gateway, without a word."""
        return self.door.dial()

    def close(self) -> None:
        """End everything."""
        self.door.close()
        super().close()
