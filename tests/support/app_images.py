"""Images of applications of others, as their publishers make them, from this machine's programs:
uvicorn, nginx and Prometheus."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.engine import base_image, make_image, refuse, with_libraries

UVICORN = ("uvicorn", "h11", "click")
"""Packages of uvicorn. They are plain Python."""
UVICORN_RECIPE = """
FROM {base}
COPY packages /usr/local/lib/python3.11/dist-packages
COPY app.py /srv/app.py
RUN find /usr/local/lib /srv -type d -exec chmod 755 {{}} +
EXPOSE 8000
USER 1000:1000
WORKDIR /srv
CMD ["python3", "-B", "-m", "uvicorn", "app:app", "--host", "0.0.0.0", "--port", "8000"]
"""
ASGI = """
import asyncio
import os

WORK = {"open": 0}


async def app(scope, receive, send):
    if scope["type"] != "http":
        raise RuntimeError("HTTP only")
    heads = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": heads})
    if scope["path"] == "/events":
        await events(receive, send)
        return
    said = f"pid {os.getpid()}, {WORK['open']} streams"
    await send({"type": "http.response.body", "body": said.encode()})


async def events(receive, send):
    left = asyncio.create_task(gone(receive))
    WORK["open"] += 1
    while not left.done():
        await send({"type": "http.response.body", "body": b"data: tick\\n\\n", "more_body": True})
        await asyncio.wait([left], timeout=0.05)
    WORK["open"] -= 1


async def gone(receive):
    while (await receive())["type"] != "http.disconnect":
        pass
"""
NGINX_RECIPE = """
FROM scratch
COPY root /
EXPOSE 80
STOPSIGNAL SIGQUIT
CMD ["/usr/sbin/nginx", "-e", "stderr", "-g", "daemon off;"]
"""
NGINX = """
user www-data;
worker_processes 2;
pid /run/nginx.pid;
events { worker_connections 256; }
http {
  access_log off;
  server { listen 80; root /var/www/html; }
}
"""
PROMETHEUS_RECIPE = """
FROM scratch
COPY root /
USER nobody
EXPOSE 9090
VOLUME /prometheus
WORKDIR /prometheus
ENTRYPOINT ["/usr/bin/prometheus"]
CMD ["--config.file=/etc/prometheus.yml", "--storage.tsdb.path=/prometheus", "--log.level=error"]
"""
PASSWD = "root:x:0:0::/:/\nwww-data:x:33:33::/:/\nnobody:x:65534:65534::/:/\n"
GROUP = "root:x:0:\nwww-data:x:33:\nnogroup:x:65534:\n"


@dataclass(frozen=True)
class App:
    """An application as a function: `server` has the keys of [server] that a user would write,
    `says` a part of the answer to GET `path`."""

    name: str
    image: str
    path: str
    says: bytes
    server: str = ""

    def bundle(self, folder: Path) -> Path:
        """Write its bundle below `folder`; return it."""
        path = folder / self.name
        path.mkdir()
        head = f'schema = 1\nname = "{self.name}"\n[server]\nimage = "{self.image}"\n'
        text = f"{head}stop_grace_s = 2\n{self.server}"
        (path / "function.toml").write_text(text)
        return path


def apps(url: str) -> dict[str, App]:
    """Return the applications by name, with their images on the engine at `url`. Skips the test if
    a program is missing, or fails in CI."""
    nginx, prometheus = _nginx(url), _prometheus(url)
    as_root = 'capabilities = ["CHOWN", "SETGID", "SETUID"]\n'
    folders = 'writable = { "/run" = 1, "/var/lib/nginx" = 16 }\n'
    made = (
        App("asgi", _uvicorn(url), "/", b"streams"),
        App("nginx", nginx, "/", b"a page of nginx", folders + as_root),
        App("nginx-33", nginx, "/", b"a page of nginx", folders + 'user = "33:33"\n'),
        App("prometheus", prometheus, "/api/v1/query?query=6*7", b'"42"', 'ready = "/-/ready"\n'),
    )
    return {app.name: app for app in made}


def _uvicorn(url: str) -> str:
    files = {"app.py": ASGI.encode()}
    for name in UVICORN:
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:
            refuse(f"the package {name} is not installed")
        folder = Path(found.origin).parent
        for path in sorted(folder.rglob("*.py")):
            files[f"packages/{name}/{path.relative_to(folder)}"] = path.read_bytes()
    return make_image(url, "fngate-app-uvicorn", UVICORN_RECIPE.format(base=base_image()), files)


def _nginx(url: str) -> str:
    files = dict(_files(_program("nginx")))
    files["root/etc/nginx/nginx.conf"] = NGINX.encode()
    files["root/var/www/html/index.html"] = b"<h1>a page of nginx</h1>\n"
    return make_image(url, "fngate-app-nginx", NGINX_RECIPE, files)


def _prometheus(url: str) -> str:
    files = dict(_files(_program("prometheus")))
    files["root/etc/prometheus.yml"] = b"global: {scrape_interval: 1s}\n"
    return make_image(url, "fngate-app-prometheus", PROMETHEUS_RECIPE, files)


def _program(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        refuse(f"{name} is not installed")
    return found


def _files(program: str) -> Iterator[tuple[str, bytes]]:
    """Yield the files of an image that has one program of this machine."""
    for path in with_libraries(program):
        yield f"root{path}", Path(path).read_bytes()
    yield "root/etc/passwd", PASSWD.encode()
    yield "root/etc/group", GROUP.encode()
