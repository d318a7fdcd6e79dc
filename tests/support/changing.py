"""Changes of a server through its admin API, in a random order, and the answers that calls must get
after each."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

from tests.support import marked_server, models
from tests.support.process_server import ServerProcess
from tests.support.worker_server import Line

MODELS, SERVERS = ("m", "n"), ("web", "site")
ALIASES = ("first", "second")
SCOPES = (("invoke",), ("invoke:m",), ("invoke:web", "invoke:n"), ("invoke:site",), ("read",))
KEYS_MAX, DEAD_MAX, REVISIONS_MAX = 4, 3, 3
PRIVATE = "/private"
"""Path that some revisions of servers deny."""


@dataclass(frozen=True)
class Made:
    """What a revision of a function is made of."""

    mark: int
    """Number in its answers."""
    denies: bool = False
    """Whether its server denies PRIVATE."""


MADE_MODELS = (Made(2), Made(3))
MADE_SERVERS = (Made(2), Made(3), Made(3, denies=True))


def made_for(name: str) -> tuple[Made, ...]:
    """Return what revisions of a function may be made of."""
    return MADE_SERVERS if name in SERVERS else MADE_MODELS


@dataclass
class Known:
    """One function, as the operator knows it."""

    revisions: dict[int, Made] = field(default_factory=dict)
    """By number."""
    current: int = 0
    """Number of the revision that has the traffic."""

    @property
    def made(self) -> Made:
        """The revision that has the traffic."""
        return self.revisions[self.current]


class Operator:
    """Who changes a server. `live`: scopes by key; `dead`: keys that were valid once; `pid`: the
    gateway process that passes on what the operator asks.

    Every method returns when the admin API has answered, or the operation is done.
    """

    def __init__(self, server: ServerProcess, folder: Path) -> None:
        self._server = server
        self._line = Line(server)
        self.pid = self._line.pid
        self._folder = folder
        self._requests: dict[tuple[bool, Made], dict[str, Any]] = {}
        self.functions: dict[str, Known] = {}
        self.aliases: dict[str, str] = {}
        self.live: dict[str, tuple[str, ...]] = {server.token: ("admin",)}
        self.dead: list[str] = []
        self.is_open = True
        self._ids: dict[str, str] = {}

    @property
    def secrets(self) -> list[str]:
        """The keys that can be removed, oldest first."""
        return [*self._ids]

    def close(self) -> None:
        """Close the connection."""
        self._line.close()

    def prepare(self) -> None:
        """Deploy each kind of revision once, under a name that nobody calls: later deploys of it
        need neither an upload nor a trial."""
        for made in MADE_MODELS:
            self._upload(False, made, self._model(made))
        for made in MADE_SERVERS:
            self._upload(True, made, self._server_files(made))
        for is_server, made in self._requests:
            name = f"kept-{'server' if is_server else 'model'}"
            self._deploy(name, is_server, made)

    def reset(self) -> None:
        """Remove everything that orders before have left."""
        for name in [*self.functions]:
            self.remove(name)
        for secret in self.secrets:
            self.remove_key(secret)
        self.dead = []
        self.decide("open")

    def change(self, random: Random) -> str:
        """Make one random change; return it in words."""
        server = random.choice(SERVERS)
        name = random.choice((server, *MODELS))
        match random.randrange(16):
            case 0 | 1 | 2 if len(self._ids) < KEYS_MAX:
                return self.add_key(random.choice(SCOPES))
            case 3 | 4 if self._ids:
                return self.remove_key(random.choice(self.secrets))
            case 5:
                return self.decide(random.choice(("open", "closed")))
            case 6:
                return self.rotate()
            case 7 | 8 | 9 | 10 if len(self._revisions(name)) < REVISIONS_MAX:
                return self.deploy(name, random.choice(made_for(name)))
            case 11 | 12 if len(self._revisions(name)) > 1:
                known = self.functions[name]
                return self.roll_back(
                    name, random.choice([*known.revisions.keys() - {known.current}])
                )
            case 13 if name in self.functions:
                return self.remove(name)
            case 14 if server in self.functions:
                return self.add_alias(server, random.choice(ALIASES))
            case 15 if self.aliases:
                return self.remove_alias(random.choice([*self.aliases]))
        return self.change(random)

    def add_key(self, scopes: Iterable[str]) -> str:
        """Create a key. The first one closes the server."""
        found = self._ask("POST", "/keys", {"scopes": [*scopes]})
        self.is_open = self.is_open and bool(self._ids)
        self.live[found["secret"]] = tuple(scopes)
        self._ids[found["secret"]] = found["id"]
        return f"a key for {scopes} was added"

    def remove_key(self, secret: str) -> str:
        """Revoke a key."""
        self._ask("DELETE", f"/keys/{self._ids.pop(secret)}")
        scopes = self._died(secret)
        return f"a key for {scopes} was removed"

    def decide(self, openness: str) -> str:
        """Decide whether callers without a key are let in."""
        self._ask("PATCH", "/access", {"openness": openness})
        self.is_open = openness == "open"
        return f"{openness} for callers without a key"

    def rotate(self) -> str:
        """Replace the admin token."""
        before = self._server.token
        self._ask("POST", "/access/token")
        self._died(before)
        self.live[self._server.token] = ("admin",)
        return "another admin token"

    def deploy(self, name: str, made: Made) -> str:
        """Deploy a revision, or keep the current one that is made of the same."""
        number = self._deploy(name, name in SERVERS, made)
        known = self.functions.setdefault(name, Known())
        known.revisions[number], known.current = made, number
        return f"{name}@{number} was deployed: {made}"

    def roll_back(self, name: str, number: int) -> str:
        """Move the traffic to another revision."""
        self._operate(f"/functions/{name}/rollback", {"to": number, "breaking": True})
        self.functions[name].current = number
        return f"rolled back to {name}@{number}: {self.functions[name].made}"

    def remove(self, name: str) -> str:
        """Remove a function, with its aliases and its host."""
        self._ask("DELETE", f"/functions/{name}")
        del self.functions[name]
        self.aliases = {alias: one for alias, one in self.aliases.items() if one != name}
        return f"{name} was removed"

    def add_alias(self, name: str, alias: str) -> str:
        """Give a function another name at /v1, which no other function may have."""
        if self.aliases.get(alias, name) != name:
            self.remove_alias(alias)
        self._ask("POST", "/aliases", {"function": name, "alias": alias})
        self.aliases[alias] = name
        return f"{name} is also {alias}"

    def remove_alias(self, alias: str) -> str:
        """Take a name away."""
        self._ask("DELETE", f"/aliases?alias={alias}")
        return f"{self.aliases.pop(alias)} is no longer {alias}"

    def _revisions(self, name: str) -> dict[int, Made]:
        return self.functions.get(name, Known()).revisions

    def _died(self, secret: str) -> tuple[str, ...]:
        self.dead = [*self.dead[1 - DEAD_MAX :], secret]
        return self.live.pop(secret)

    def _model(self, made: Made) -> dict[str, bytes]:
        path = models.affine(self._folder, made.mark, 0)
        return {path.name: path.read_bytes()}

    def _server_files(self, made: Made) -> dict[str, bytes]:
        source = Path(marked_server.__file__)
        words = [sys.executable, "-B", "-E", "-S", source.name, "${PORT}", str(made.mark)]
        deny = f'deny = ["{PRIVATE}"]\n' if made.denies else ""
        manifest = f"schema = 1\n[server]\ncommand = {json.dumps(words)}\n{deny}[openai]\n"
        return {source.name: source.read_bytes(), "function.toml": manifest.encode()}

    def _upload(self, is_server: bool, made: Made, files: dict[str, bytes]) -> None:
        listed = []
        for path, content in files.items():
            digest = sha256(content).hexdigest()
            status, _ = self._line.ask(
                "PUT", f"/admin/v1/blobs/{digest}", content, self._server.headers
            )
            assert status in (200, 201)
            listed.append({"path": path, "size": len(content), "sha256": digest})
        manifest = files.get("function.toml")
        self._requests[is_server, made] = {
            "files": listed,
            "trust": True,
            "breaking": True,
            **({"manifest": manifest.decode()} if manifest else {"model": listed[0]["path"]}),
        }

    def _deploy(self, name: str, is_server: bool, made: Made) -> int:
        request = self._requests[is_server, made]
        result = self._operate(f"/functions/{name}/revisions", request)
        return int(result["revision"].partition("@")[2])

    def _operate(self, path: str, request: dict[str, Any]) -> dict[str, Any]:
        operation = self._ask("POST", path, request)
        while operation["state"] == "running":
            query = f"wait=60&phase={operation['phase']}"
            operation = self._ask("GET", f"/operations/{operation['id']}?{query}")
        assert operation["state"] == "done", operation
        result: dict[str, Any] = operation["result"]
        return result

    def _ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        status, answer = self._line.ask(method, f"/admin/v1{path}", body, self._server.headers)
        assert 200 <= status < 300, (method, path, status, answer)
        found: dict[str, Any] = answer
        return found


def outcome(world: Operator, secret: str | None, name: str) -> int:
    """Return what a call of the function `name` with a key gets: the mark of the revision that must
    answer, or the status of the refusal. `secret` None: a call without a key."""
    scopes = world.live.get(secret) if secret else ("invoke",) if world.is_open else None
    if scopes is None:
        return 401
    if not {"invoke", f"invoke:{name}", "admin"} & {*scopes}:
        return 403
    known = world.functions.get(name)
    return 404 if known is None else known.made.mark
