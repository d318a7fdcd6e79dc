"""Property tests of enrolment: whatever order tokens come in, how often, how many at once, and
whenever the server ends, a token gives one identity, its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from hosts.tls.admission import ReplicaTable
from hosts.tls.authority import Authority, Contexts
from hosts.tls.enrolling import Enrolments
from hosts.tls.peers import PeerRefused
from registry.errors import StoreUnavailable
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.enrolment import Enrolled, replica_name
from runtime_image.contract.link import VERSION, Kind
from tests.support.doses import amount
from tests.support.link_door import record_of

SEQUENCES = amount(250, 100_000)
REPLICAS = 4
pytestmark = pytest.mark.timeout(amount(60, 3600))


class Stored:
    """What the manager keeps of a replica through its restarts."""

    def __init__(self, id: str, chance: random.Random) -> None:
        self.id, self.token, self._chance = id, f"token of {id}", chance
        self.is_enrolled = False
        self.asked = 0

    async def enrol(self, host: str, port: int) -> ReplicaRecord:
        """Store it, sometimes after other things were done, or not at all."""
        self.asked += 1
        for _ in range(self._chance.randrange(3)):
            await asyncio.sleep(0)
        if self._chance.random() < 0.2:
            raise StoreUnavailable("the disk is full")
        self.is_enrolled = True
        return record_of(self.id, f"tls://{host}:{port}")

    def connected(self, sock: socket.socket) -> None:
        """Nobody connects."""
        raise AssertionError

    def file(self, sha256: str) -> Path | None:
        """Nobody fetches."""
        raise AssertionError


class Asking:
    """A peer that sends one ENROL and then its end."""

    def __init__(self, token: str) -> None:
        self.host = "192.0.2.1"
        self.body = json.dumps({"version": VERSION, "token": token, "port": 7443}).encode()
        self.reader = asyncio.StreamReader()
        self.reader.feed_eof()
        self.got: list[tuple[Kind, Any]] = []

    async def send_json(self, kind: Kind, body: Any, id: int = 0) -> None:
        """Keep what it is sent."""
        self.got.append((kind, body))


def name_in(answer: Enrolled) -> str:
    """Return the name in a certificate."""
    certificate = x509.load_pem_x509_certificate(answer["certificate"].encode())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    (name,) = names.get_values_for_type(x509.DNSName)
    return name


class World:
    """A manager, the replicas that it has, and the identities that were given."""

    def __init__(self, authority: Authority, chance: random.Random) -> None:
        self._authority, self._chance = authority, chance
        self.stored = {f"r{n}": Stored(f"r{n}", chance) for n in range(REPLICAS)}
        self.admitted = {id for id in self.stored if chance.random() < 0.7}
        self.given: Counter[str] = Counter()
        self.start()

    def start(self) -> None:
        """Start the server, anew: of the door nothing is left but what was stored."""
        self.table = ReplicaTable()
        self.enrolments = Enrolments(
            self.table,
            self._authority,
            Contexts(self._authority, time.time),
            asyncio.get_running_loop(),
        )
        self.enrolments.identify = self._identified
        for id in self.admitted:
            self.table.admit(id, self.stored[id])

    async def _identified(self, credential: str, host: str) -> str | None:
        """Say whose a credential is, as the API of a cluster does."""
        for _ in range(self._chance.randrange(3)):
            await asyncio.sleep(0)
        what, _, id = credential.partition(" of ")
        return id if what == "identity" and id in self.stored else None

    async def attempt(self, token: str) -> None:
        """Enrol with a token; note whose identity that gave."""
        peer = Asking(token)
        with contextlib.suppress(PeerRefused):
            await self.enrolments.serve(peer, peer.body)  # type: ignore[arg-type]
        kinds = [kind for kind, _ in peer.got]
        assert kinds in ([Kind.FAILED], [Kind.ENROLLED, Kind.FAILED])
        for kind, body in peer.got:
            if kind is Kind.ENROLLED:
                id = token.rpartition(" ")[2]
                assert name_in(body) == replica_name(id)
                assert self.stored[id].is_enrolled
                self.given[id] += 1

    async def step(self) -> None:
        """Do one thing."""
        id = self._chance.choice(list(self.stored))
        match self._chance.randrange(5):
            case 0:
                # The manager admits a replica once: its ids are random.
                if id not in self.admitted:
                    self.admitted.add(id)
                    self.table.admit(id, self.stored[id])
            case 1:
                self.start()
            case _:
                tokens = self._chance.choices(
                    [f"token of {id}", f"identity of {id}"], k=self._chance.randrange(1, 4)
                )
                tokens += ["", "token of", f"token of {id} ", "token of r9"][: len(tokens)]
                was_admitted = id in self.admitted
                given = self.given.copy()
                await asyncio.gather(*map(self.attempt, tokens))
                assert was_admitted or self.given == given


async def test_a_token_gives_one_identity(tmp_path: Path) -> None:
    """No sequence of admissions, enrolments at the same time, full disks and restarts gives two
    identities for a token, one for a token that is not admitted, or one that was not stored."""
    authority = Authority.open(tmp_path / "link", 1, time.time)
    given = 0
    for seed in range(SEQUENCES):
        chance = random.Random(seed)
        world = World(authority, chance)
        for _ in range(chance.randrange(1, 12)):
            await world.step()
        assert max(world.given.values(), default=0) <= 1
        given += world.given.total()
    assert given > SEQUENCES // 3
