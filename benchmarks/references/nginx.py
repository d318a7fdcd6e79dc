"""nginx as a proxy: the least that a gateway written in C takes for a request."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

PATHS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
FOR_EVER = 1_000_000_000


def program() -> str | None:
    """Where nginx is, None where it is not installed; Debian has it outside users' PATH."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


def configuration(folder: Path, port: int, upstream: int) -> str:
    """One worker, no log, connections kept open at both sides, all files below `folder`."""
    temporary = "\n".join(f"  {name}_temp_path {folder}/{name};" for name in PATHS)
    # Its worker would change to nobody, who may not enter the folder.
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
    }}
  }}
}}
"""


def command(folder: Path, port: int, upstream: int) -> list[str]:
    """Writes the configuration; what to run. Raises FileNotFoundError where there is no nginx."""
    path = program()
    if path is None:
        raise FileNotFoundError("nginx: expected it to be installed, found it nowhere")
    file = folder / "nginx.conf"
    file.write_text(configuration(folder, port, upstream))
    return [path, "-p", str(folder), "-e", str(folder / "start.log"), "-c", str(file)]
