"""The server that falls sick, as a function; see `sick/sick.py`."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

SOURCE = Path(__file__).parent / "sick"


def bundle(
    folder: Path, name: str, *options: str, ready: str = "/health", limits: str = "", more: str = ""
) -> Path:
    """Write a bundle of the server below `folder`; return it.

    `ready` is the path of its probes, "" for none; `limits` are lines of the table [limits], `more`
    further tables.
    """
    path = folder / name
    shutil.copytree(SOURCE, path, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    command = [sys.executable, "-B", "-E", "-S", "sick.py", "${PORT}", *options]
    probed = f'ready = "{ready}"' if ready else ""
    (path / "function.toml").write_text(f"""schema = 1
name = "{name}"

[server]
command = {json.dumps(command)}
stop_grace_s = 1
{probed}

[limits]
{limits}

{more}
""")
    return path
