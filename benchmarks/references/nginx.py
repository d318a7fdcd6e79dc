"""nginx as a proxy: a lower bound for the cost of a gateway written in C."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

PATHS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
FOR_EVER = 1_000_000_000
IDLE_S = 60.0
"""Default of nginx."""


def program() -> str | None:
    """Return the path of nginx, None if it is missing; Debian installs it outside users' PATH."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


def configuration(
    folder: Path, port: int, upstream: int, *, streams: bool = False, idle_s: float = IDLE_S
) -> str:
    """Return the configuration: one worker, no log, keep-alive on both sides, files in `folder`.

    `streams` passes bodies on as they arrive, both ways; otherwise nginx buffers as it does by
    default. `idle_s`: seconds without a byte of the server after which it gives up.
    """
    buffering = "proxy_buffering off; proxy_request_buffering off;" if streams else ""
    temporary = "\n".join(f"  {name}_temp_path {folder}/{name};" for name in PATHS)
    # Otherwise its worker would switch to the user nobody, who cannot access the folder.
    user = "user root;" if os.getuid() == 0 else ""
    return f"""
{user}
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log crit;
events {{ worker_connections 4096; }}
http {{
  access_log off;
{temporary}
  client_max_body_size 64m;
  client_body_buffer_size 16m;
  keepalive_requests {FOR_EVER};
  upstream behind {{
    server 127.0.0.1:{upstream};
    keepalive 64;
    keepalive_requests {FOR_EVER};
  }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://behind;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $http_host;
      proxy_read_timeout {round(idle_s * 1e3)}ms;
      {buffering}
    }}
  }}
}}
"""


def command(
    folder: Path, port: int, upstream: int, *, streams: bool = False, idle_s: float = IDLE_S
) -> list[str]:
    """Write the configuration; return the command. Raises FileNotFoundError without nginx."""
    path = program()
    if path is None:
        raise FileNotFoundError("nginx is not installed")
    file = folder / "nginx.conf"
    file.write_text(configuration(folder, port, upstream, streams=streams, idle_s=idle_s))
    return [path, "-p", str(folder), "-e", str(folder / "start.log"), "-c", str(file)]
