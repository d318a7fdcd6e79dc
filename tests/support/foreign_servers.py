"""Servers of others as functions and, beside them, as processes of their own."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

START_S = 30.0
END_S = 20.0
ASGI = """
import asyncio
import hashlib

from fastapi import FastAPI, Request, WebSocket
from fastapi.responses import StreamingResponse

app = FastAPI()


@app.get("/items/{name}")
def item(name: str, q: int = 0):
    return {"name": name, "q": q, "double": 2 * q}


@app.post("/digest")
async def digest(request: Request):
    found, count = hashlib.sha256(), 0
    async for piece in request.stream():
        found.update(piece)
        count += len(piece)
    return {"bytes": count, "sha256": found.hexdigest()}


@app.get("/events")
def events(n: int = 20):
    async def sending():
        for number in range(n):
            yield f"data: {number}\\n\\n"
            await asyncio.sleep(0.005)
        yield "data: [DONE]\\n\\n"
    return StreamingResponse(sending(), media_type="text/event-stream")


@app.websocket("/ws")
async def echo(websocket: WebSocket):
    await websocket.accept()
    async for text in websocket.iter_text():
        await websocket.send_text(text.upper())
"""
NGINX = """
daemon off;
{user}
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 256; }}
http {{
  access_log off;
  gzip on; gzip_min_length 1000; gzip_types text/plain;
  client_max_body_size 64m;
  {paths}
  server {{
    listen 127.0.0.1:{port};
    root {root};
    location = /moved {{ return 302 /index.html; }}
    location = /gone {{ return 410 "gone\\n"; }}
  }}
}}
"""
SCRAPING = """
global: {scrape_interval: 1s, scrape_timeout: 1s}
scrape_configs:
  - job_name: itself
    static_configs: [{targets: ["127.0.0.1:1"]}]
"""


@dataclass(frozen=True)
class Foreign:
    """A server: its files by bundle path, its command with ${PORT}, and its readiness path.

    `port`: its port where the command has none.
    """

    name: str
    files: Mapping[str, bytes]
    command: Sequence[str]
    ready: str
    port: int = 0
    env: Mapping[str, str] = field(default_factory=dict)

    def bundle(self, folder: Path) -> Path:
        """Write its bundle below `folder`; return it."""
        path = folder / self.name
        for name, content in self.files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(content)
        path.mkdir(parents=True, exist_ok=True)
        words = ", ".join(f"'{word}'" for word in self.command)
        lines = ["schema = 1", f'name = "{self.name}"', "[server]", f"command = [{words}]"]
        lines += [f'ready = "{self.ready}"', "start_s = 30", "stop_grace_s = 2"]
        lines += [f"port = {self.port}"] if self.port else []
        (path / "function.toml").write_text("\n".join(lines) + "\n")
        return path


def missing(what: str) -> None:
    """Skip the test, or fail in CI, where everything is installed."""
    if os.environ.get("FN_CI"):
        pytest.fail(f"{what} is missing: .ci/run installs it")
    pytest.skip(f"{what} is not installed")


def asgi() -> Foreign:
    """Return an application of FastAPI on uvicorn. FN_TEST_ASGI names another interpreter."""
    python = os.environ.get("FN_TEST_ASGI", sys.executable)
    probe = [python, "-c", "import fastapi, uvicorn, websockets"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("fastapi, uvicorn or websockets is not installed: FN_TEST_ASGI=PYTHON")
    words = [python, "-m", "uvicorn", "app:app", "--port", "${PORT}", "--log-level", "warning"]
    return Foreign("asgi", {"app.py": ASGI.encode()}, words, "/openapi.json")


def nginx_program() -> str:
    """Return the path of nginx. Skip the test without one."""
    path = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if path is None:
        missing("nginx")
    assert path is not None
    return path


def nginx(folder: Path, port: int) -> Foreign:
    """Return nginx with static files; it writes into `folder` only."""
    path = nginx_program()
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    root = folder / "root"
    root.mkdir(parents=True, exist_ok=True)
    chance = random.Random(port)
    (root / "index.html").write_bytes(b"<h1>nginx</h1>\n" * 500)
    (root / "plain.txt").write_bytes(b"a line of text\n" * 10_000)
    (root / "random.bin").write_bytes(chance.randbytes(8 << 20))
    for entry in root.iterdir():
        os.utime(entry, (1_700_000_000, 1_700_000_000))
    configuration = NGINX.format(
        user="user root;" if os.getuid() == 0 else "",
        folder=folder,
        port=port,
        root=root,
        paths=" ".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds),
    )
    file = folder / "nginx.conf"
    file.write_text(configuration)
    words = [path, "-e", "stderr", "-p", str(folder), "-c", str(file)]
    return Foreign("nginx", {"readme.txt": b"static files\n"}, words, "/", port)


def prometheus(folder: Path) -> Foreign:
    """Return Prometheus with its data in `folder`."""
    path = shutil.which("prometheus")
    if path is None:
        missing("prometheus")
    assert path is not None
    words = [
        *(path, "--config.file=prometheus.yml", f"--storage.tsdb.path={folder}"),
        *("--web.listen-address=127.0.0.1:${PORT}", "--log.level=error"),
    ]
    return Foreign("prometheus", {"prometheus.yml": SCRAPING.encode()}, words, "/-/ready")


@contextmanager
def running(foreign: Foreign, folder: Path) -> Iterator[str]:
    """Run the server as a process of its own; yield its URL."""
    path = foreign.bundle(folder)
    port = foreign.port
    if not port:
        with socket.create_server(("127.0.0.1", 0)) as reserved:
            port = int(reserved.getsockname()[1])
    words = [word.replace("${PORT}", str(port)) for word in foreign.command]
    process = subprocess.Popen(words, cwd=path, stdin=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        _await(process, url + foreign.ready)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await(process: subprocess.Popen[bytes], url: str) -> None:
    while process.poll() is None:
        try:
            with urlopen(url, timeout=START_S):
                return
        except HTTPError:
            continue
        except OSError:
            continue
    raise AssertionError(f"{url}: the server ended with {process.returncode}")
