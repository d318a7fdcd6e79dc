"""A small web application for tests of pages: `python page_app.py PORT`.

`/` is a page, `/who` shows what the server got, `/count` how many requests came, `/events` streams,
`/ws` is a WebSocket that says hello, `/sw.js` a service worker, `/toss` sets a cookie for a parent.
`/say?status=CODE&field=NAME:VALUE&body=TEXT` answers with these, `/log` lists the requests for
paths below `/mark/`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import parse_qs

GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class App(BaseHTTPRequestHandler):
    """Handler of one connection."""

    protocol_version = "HTTP/1.1"
    count = 0
    marks: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        """Answer by the path."""
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.path, _, query = self.path.partition("?")
        type(self).count += self.path not in ("/count", "/favicon.ico")
        if self.path == "/ws":
            self._hello()
        elif self.path == "/events":
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            self.wfile.write(b"data: begun\n\n")
            self.rfile.read(1)  # until the client leaves
        elif self.path == "/who":
            self._answer(json.dumps(dict(self.headers)), "application/json")
        elif self.path == "/count":
            self._answer(str(type(self).count), "text/plain")
        elif self.path == "/log":
            self._answer(json.dumps(self.marks), "application/json")
        elif self.path == "/say":
            self._say(parse_qs(query))
        elif self.path == "/sw.js":
            self._answer("self.onfetch = () => {};", "text/javascript")
        else:
            if self.path.startswith("/mark/"):
                self.marks.append(f"{self.command} {self.path}")
            self._answer("<!doctype html><title>app</title><h1>A page</h1>", "text/html")

    do_POST = do_PUT = do_DELETE = do_OPTIONS = do_GET

    def _answer(self, text: str, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        if self.path == "/toss":
            self.send_header("Set-Cookie", "tossed=1; Domain=localhost; Path=/")
        self.end_headers()
        self.wfile.write(text.encode())

    def _say(self, asked: dict[str, list[str]]) -> None:
        body = asked.get("body", [""])[0].encode()
        self.send_response(int(asked.get("status", ["200"])[0]))
        for field in asked.get("field", ()):
            name, _, value = field.partition(":")
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _hello(self) -> None:
        key = self.headers["Sec-WebSocket-Key"] + GUID
        accept = base64.b64encode(hashlib.sha1(key.encode(), usedforsecurity=False).digest())
        self.send_response(101)
        self.send_header("Connection", "Upgrade")
        self.send_header("Upgrade", "websocket")
        self.send_header("Sec-WebSocket-Accept", accept.decode())
        self.end_headers()
        self.wfile.write(b"\x81\x05hello")
        self.rfile.read(1)
        self.close_connection = True


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), App).serve_forever()
