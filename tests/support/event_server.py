"""Server that only sends events: a snapshot to each new subscriber, then the events given to it."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from admin.cli.live.events import StreamItem, read_event
from admin.cli.live.state import LiveState
from admin.client.sse import Event as SentEvent
from admin.documents.functions import FunctionRow, Slept, Warmed, Why
from admin.documents.server import DeviceRow, ReplicaRow
from tests.support.admin_documents import filled, made

READ_S = 5.0
EVENTS = "/admin/v1/events"

Event = tuple[str, dict[str, Any]]


def line(name: str, **fields: Any) -> dict[str, Any]:
    """Return a function's line as the server sends it."""
    found: dict[str, Any] = msgspec.to_builtins(function_row(name, **fields))
    return found


def function_row(name: str, **fields: Any) -> FunctionRow:
    """Return the row of a function that sleeps."""
    own = {"revision": f"{name}@1", "state": "cold", "reason": "no calls", "max": 4, "rate": 0.0}
    return made(FunctionRow, name=name, **{**own, **fields})


def device(id: str, **fields: Any) -> dict[str, Any]:
    """Return a device as the server sends it."""
    found: dict[str, Any] = msgspec.to_builtins(device_row(id, **fields))
    return found


def device_row(id: str, **fields: Any) -> DeviceRow:
    """Return the row of a free CPU slot."""
    own = {"host": "local", "kind": "cpu", "memory_mib": 4096, "state": "free", "busy": 0.0}
    return made(DeviceRow, id=id, **{**own, **fields})


def replica(id: str, name: str, *on: str, **fields: Any) -> dict[str, Any]:
    """Return a replica as the server sends it."""
    found: dict[str, Any] = msgspec.to_builtins(replica_row(id, name, *on, **fields))
    return found


def replica_row(id: str, name: str, *on: str, **fields: Any) -> ReplicaRow:
    """Return the row of a replica that is ready on these devices."""
    own = {"function": name, "revision": f"{name}@1" if name else "", "state": "ready"}
    where = {"device": on[0] if on else "", "devices": list(on), "host": "local"}
    return made(ReplicaRow, id=id, **{**own, **where, **fields})


def read(*events: Event) -> list[StreamItem]:
    """Return what a client reads from these events."""
    several = (SentEvent("", kind, json.dumps(data)) for kind, data in events)
    return [item for one in several for item in read_event(one)]


def apply(live: LiveState, now: float, *events: Event) -> None:
    """Apply these events to the state."""
    for item in read(*events):
        live.apply(item, now)


def snapshot(functions: Iterable[dict[str, Any]], *more: Event) -> list[Event]:
    """Return a whole snapshot from `reset` to `ready`, and a beat."""
    server = {"version": "0.1.0", "driver": "process", "started_s": 1.0, "workers": 1}
    return [
        ("reset", {"reason": "a new subscriber", "server": server}),
        ("functions", {"items": list(functions)}),
        *more,
        ("ready", {}),
        beat(),
    ]


def beat(at_s: float = 1000.0, **fields: Any) -> Event:
    """Return the server's per-second figures."""
    readyz = {"status": "ok", "reasons": []}
    return "beat", {
        "at_s": at_s,
        "held": 0,
        "in_flight": 0,
        "rate": 0.0,
        "readyz": readyz,
        **fields,
    }


class EventServer:
    """HTTP server on the loopback interface until `close`. `port` 0 = chosen by the system."""

    def __init__(self, first: Iterable[Event], port: int = 0) -> None:
        self.first = list(first)
        self._told: dict[queue.SimpleQueue[Event | None], None] = {}
        self._number = 0
        self._is_refusing = False
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._server.daemon_threads = False
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def port(self) -> int:
        """Return the port it listens on."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """Return its base URL."""
        return f"http://127.0.0.1:{self.port}"

    def tell(self, *events: Event) -> None:
        """Send events to all connected subscribers."""
        with self._lock:
            for told in self._told:
                for event in events:
                    told.put(event)

    def refuse(self) -> None:
        """Refuse every key from now on."""
        self._is_refusing = True

    def drop(self) -> None:
        """Close every connection."""
        with self._lock:
            for told in self._told:
                told.put(None)

    def close(self) -> None:
        """Close connections and stop listening."""
        self.drop()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def written(self, event: Event) -> bytes:
        """Return an event in wire format. A beat has no id."""
        kind, data = event
        self._number += kind != "beat"
        id = f"id: boot-{self._number}\n" if kind != "beat" else ""
        return f"{id}event: {kind}\ndata: {json.dumps(data)}\n\n".encode()

    def serve(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        if handler.path != EVENTS:
            self._act(handler)
        elif self._is_refusing:
            _say(handler, {"title": "A key is needed", "code": "no_key"}, 401)
        else:
            self._follow(handler)

    def _follow(self, handler: BaseHTTPRequestHandler) -> None:
        told: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.end_headers()
        with self._lock:
            self._told[told] = None
        try:
            handler.wfile.write(b"".join(map(self.written, self.first)))
            while (event := told.get()) is not None:
                handler.wfile.write(self.written(event))
        except OSError:
            pass  # the subscriber is gone
        finally:
            with self._lock:
                self._told.pop(told, None)

    def _act(self, handler: BaseHTTPRequestHandler) -> None:
        *_, name, verb = handler.path.partition("?")[0].split("/")
        decisions = [{"at_s": 1.0, "text": "because"}]
        answers: dict[str, dict[str, Any]] = {
            "why": {"state": "warm", "reason": "kept", "decisions": decisions},
            "warm": {"name": name, "revision": f"{name}@1", "took_ms": 12.0},
            "sleep": {"name": name, "asked": 1},
        }
        kind = {"why": Why, "warm": Warmed, "sleep": Slept}[verb]
        _say(handler, filled(kind, answers[verb]), 200)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            timeout = READ_S

            def do_GET(self) -> None:
                server.serve(self)

            def do_POST(self) -> None:
                server.serve(self)

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


def _say(handler: BaseHTTPRequestHandler, document: dict[str, Any], status: int) -> None:
    body = json.dumps(document).encode()
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)
