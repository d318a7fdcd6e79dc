"""The faulty server as an image on an engine, and manifests of functions with that image."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

from tests.support.engine import connected
from tests.support.faulty_server import SOURCE

RECIPE = """
FROM {base}
USER root
COPY *.py /faulty/
USER 4711:4712
WORKDIR /faulty
ENTRYPOINT ["python3", "-B", "-E", "-S", "/faulty/faulty.py"]
CMD ["--port", "8000"]
"""
MANIFEST = """
schema = 1
name = "{name}"

[server]
image = "{image}"
command = ["--port", "8000", "--name", "{name}", "--seen", "/seen/{name}"]
port = 8000
ready = "/ready"
start_s = 60
stop_grace_s = 1

[server.mounts]
seen = "{seen}:/seen:rw"

{more}
"""


def make_faulty_image(url: str, base: str) -> str:
    """Return the tag of the server's image on the engine at `url`; build it if it is missing.

    `base` is the tag of an image with Python on that engine.
    """
    files = {path.name: path.read_bytes() for path in sorted(SOURCE.glob("*.py"))}
    files["Dockerfile"] = RECIPE.format(base=base).encode()
    tag = f"fngate-faulty:{hashlib.sha256(repr(files).encode()).hexdigest()[:12]}"
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o644
            archive.addfile(member, io.BytesIO(data))
    packed.seek(0)
    with connected(url) as client:
        client.images.build(
            fileobj=packed, custom_context=True, tag=tag, network_mode="none", rm=True, forcerm=True
        )
    return tag


def make_seen_folder(path: Path) -> Path:
    """Create the folder in which servers note the tokens of the requests that they have read."""
    path.mkdir(parents=True)
    path.chmod(0o777)  # the image's user writes there
    return path


def write_manifest(folder: Path, name: str, image: str, seen: Path, more: str = "") -> Path:
    """Write a function of the image to `folder`; return it. `more`: further tables."""
    folder.mkdir(parents=True, exist_ok=True)
    text = MANIFEST.format(name=name, image=image, seen=seen, more=more)
    (folder / "function.toml").write_text(text)
    return folder


def seen_tokens(seen: Path, name: str) -> list[str]:
    """Return the tokens of all requests that a function's servers have read, in order."""
    path = seen / name
    return [token for token in path.read_text().split("\n") if token] if path.exists() else []
