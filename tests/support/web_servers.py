"""A small HTTP server as a function over each driver that runs real ones: as a command among the
bundle's files, and as an image."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import re
import socket
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from pool_manager.ports import Binding, ServerContainer
from runtime_image.contract.server import ServerSpec
from tests.support.engine import connected, make_image
from tests.support.replicas import Stage, binding
from tests.support.scenes import Scenes
from tests.support.sidecar_process import Gateway

ID = "aaaa0001"
IDS = (4711, 4712)
"""Ids of the image's user, which the image names."""
PORT = 8000
RECIPE = """
FROM {runtime}
USER root
RUN echo 'web:x:4711:4712::/:/bin/sh' >> /etc/passwd && mkdir -m 755 /data /cache
COPY server.py /server.py
ENV NVIDIA_VISIBLE_DEVICES=all FROM_IMAGE=1
HEALTHCHECK --interval=1s CMD false
EXPOSE 9000
VOLUME /data
STOPSIGNAL SIGUSR1
USER web
WORKDIR /opt
ENTRYPOINT ["python3", "-I", "-u", "/server.py"]
CMD ["8000"]
"""
SERVER = r'''
import http.server, json, os, signal, subprocess, sys

def write(folder):
    """What comes of writing a program to a folder and running it."""
    path = folder + "/program"
    try:
        with open(path, "w") as file:
            file.write("#!/bin/sh\necho ran\n")
        os.chmod(path, 0o755)
        return subprocess.run([path], capture_output=True, text=True).stdout.strip()
    except OSError as error:
        return error.strerror

def size(folder):
    """MiB of the file system of a folder."""
    seen = os.statvfs(folder)
    return seen.f_blocks * seen.f_frsize >> 20

def files(folder):
    """Files of the function, each with what comes of changing it."""
    found = {}
    for name in os.listdir(folder) if folder else ():
        try:
            os.chmod(os.path.join(folder, name), 0o777)
        except OSError as error:
            found[name] = error.strerror
    return found

def facts():
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return {
        "ids": [os.getuid(), os.getgid()],
        "capabilities": int(status["CapEff"], 16),
        "no_new_privileges": status["NoNewPrivs"].strip(),
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "files": files(os.environ.get("FN_BUNDLE")),
        "writes": {folder: write(folder) for folder in ("/", "/data", "/cache", "/tmp", "/opt")},
        "sizes": {folder: size(folder) for folder in ("/data", "/cache", "/dev/shm")},
        "mounted": sorted(os.listdir("/mnt")),
        "run": os.path.exists("/run/fngate"),
        "unix": open("/proc/net/unix").read(),
        "processes": sorted(name for name in os.listdir("/proc") if name.isdigit()),
        "reserved": open("/proc/sys/net/ipv4/ip_local_reserved_ports").read().strip(),
    }

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/stream":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"begun")
            self.rfile.read()
            return
        if self.path == "/exit":
            os._exit(3)
        if self.path == "/eat":
            self.server.eaten = b"x" * (400 * 2**20)
        if self.path == "/child-eats":
            subprocess.run([sys.executable, "-c", "b'x' * (400 * 2**20)"])
        body = json.dumps(facts()).encode() if self.path == "/facts" else b"hello"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

def leave(number, _):
    print("bye at", signal.Signals(number).name, flush=True)
    os._exit(0)

def main(port, *options):
    for name in ("SIGTERM", "SIGUSR1"):
        signal.signal(getattr(signal, name), signal.SIG_IGN if "stay" in options else leave)
    print("hello from the server", flush=True)
    if "exit" in options:
        sys.exit(int(options[1]))
    Server((os.environ.get("LISTEN", "127.0.0.1"), int(port)), Handler).serve_forever()

main(*sys.argv[1:])
'''


def write_bundle(folder: Path) -> Path:
    """Write the server's program."""
    (folder / "server.py").write_text(SERVER)
    return folder


def make_web_image(url: str, runtime_image: str) -> str:
    """Return the id of the server's image on the engine at `url`; build it if it is missing."""
    with connected(url) as client:
        return str(client.images.get(web_image_tag(url, runtime_image)).id)


def web_image_tag(url: str, runtime_image: str) -> str:
    """Return the tag of the server's image on the engine at `url`; build it if it is missing."""
    recipe = RECIPE.format(runtime=runtime_image)
    return make_image(url, "fngate-web", recipe, {"server.py": SERVER.encode()})


class Web:
    """The server over one driver."""

    def __init__(self, scenes: Scenes, image: str) -> None:
        self.scenes = scenes
        self.image = image
        self._gateways: list[Gateway] = []

    @property
    def is_apart(self) -> bool:
        """Whether the server is an image."""
        return self.scenes.kind == "docker"

    def binding(
        self,
        *options: str,
        container: dict[str, Any] | None = None,
        secrets: dict[str, str] | None = None,
        memory_mib: int = 0,
        **spec: Any,
    ) -> Binding:
        """Return the binding of the server with these options; `container` are fields of its
        container, `spec` fields of the specification."""
        given: dict[str, Any] = {"start_s": 30.0, "stop_grace_s": 5.0, "concurrency": 4, **spec}
        if not self.is_apart:
            command = (sys.executable, "-I", "-u", "server.py", "${PORT}", *options)
            made = ServerSpec("digits@1", command, **given)
            return binding(made, memory_mib=memory_mib, secrets=secrets or {})
        apart = ServerContainer(
            self.image,
            ("${PORT}", *options) if options else (),
            stop_grace_s=given["stop_grace_s"],
            concurrency=given["concurrency"],
        )
        return binding(
            ServerSpec("digits@1", (), is_apart=True, **given),
            memory_mib=memory_mib,
            container=replace(apart, **(container or {})),
            secrets=secrets or {},
        )

    async def ready(self, *options: str, **changes: Any) -> Stage:
        """Return a stage with the server ready as ID."""
        stage = await self.scenes.stage()
        await stage.ready(ID, self.binding(*options, **changes))
        return stage

    async def gateway(self, stage: Stage) -> Gateway:
        """Connect a gateway to the replica. Its calls block."""
        made = await asyncio.to_thread(Gateway, stage.launcher.folders.data_socket(ID))
        self._gateways.append(made)
        return made

    def close(self) -> None:
        """Close all gateways."""
        for one in self._gateways:
            one.close_all()


def ends(sock: socket.socket) -> bool:
    """Wait for the end of a connection."""
    with contextlib.suppress(ConnectionResetError):
        while sock.recv(65536):
            pass
    return True


GREETER = r"""
use IO::Socket::INET;
$SIG{TERM} = sub { exit 0 };
my $server = IO::Socket::INET->new(LocalAddr => "127.0.0.1", LocalPort => 8000, Listen => 64,
    ReuseAddr => 1) or die;
while (1) {
    my $client = $server->accept or next;
    while (my $line = <$client>) { last if $line =~ /^\r?$/ }
    my $text = "$ENV{GREETING}$ENV{TOKEN}\n";
    my $head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: " . length($text);
    print $client "$head\r\n\r\n$text";
    close $client;
}
"""
"""An HTTP server for the Perl that every Debian has."""
PERL = ("/usr/bin/perl", "/usr/lib/x86_64-linux-gnu/perl-base")


def make_greeter_image(url: str, greeting: str, mib: int = 0) -> str:
    """Import an image of one layer: a server on port 8000 that answers with `greeting`, and `mib`
    MiB that do not compress; return its id. It has about 12 MiB otherwise, and is made in an
    instant."""
    needs = subprocess.run(["ldd", PERL[0]], stdout=subprocess.PIPE, check=True, text=True)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", dereference=True) as archive:
        for path in (*PERL, *sorted(re.findall(r"(/\S+) \(0x", needs.stdout))):
            archive.add(path)
        for name, data in (("greeter.pl", GREETER.encode()), ("ballast", os.urandom(mib * 2**20))):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    changes = [
        'ENTRYPOINT ["/usr/bin/perl", "/greeter.pl"]',
        "EXPOSE 8000/tcp",
        f"ENV GREETING={greeting} TOKEN=",
    ]
    with connected(url) as client:
        made = client.api.import_image_from_data(packed.getvalue(), changes=changes)
    return str(json.loads(made)["status"])
