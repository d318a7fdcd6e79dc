"""Images of applications with pages, from packages of an index: JupyterLab, Streamlit, Gradio.

`make test-apps` builds them (FN_TEST_APPS=1). They stay on the engine, so that the next run needs
no index.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import docker
import pytest

from tests.support.engine import base_image, build_image, connected, image_tag

PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64")
DOWNLOAD_S = 600
RECIPE = """
FROM {base}
COPY wheels /wheels
COPY app /app
RUN python3 -m pip install --break-system-packages --no-cache-dir --no-index --find-links /wheels \
    {packages} && rm -r /wheels && find /app -type d -exec chmod 755 {{}} + && \
    echo 'someone:x:1000:100::/home/someone:/bin/sh' >> /etc/passwd && \
    mkdir /home/someone && chown 1000:100 /home/someone
USER someone
WORKDIR /app
ENV HOME=/home/someone
"""


def page_image(url: str, name: str, packages: str, app: Mapping[str, bytes]) -> str:
    """Return the tag of the image of an application on the engine at `url`; build it if it is
    missing. `packages` are their names, `app` files for /app. Skips the test unless images may be
    built."""
    if os.environ.get("FN_TEST_APPS") != "1":
        pytest.skip("FN_TEST_APPS=1 builds the image, with packages of an index: make test-apps")
    recipe = RECIPE.format(base=base_image(), packages=packages)
    files = {f"app/{path}": content for path, content in app.items()} or {"app/none": b""}
    tag = image_tag(f"fngate-app-{name}", recipe, files)
    with connected(url, answer_s=DOWNLOAD_S) as client:
        if not client.images.list(name=tag):
            wheels = _wheels(client, packages)
            build_image(client, tag, recipe, {**wheels, **files})
    return tag


def _wheels(client: docker.DockerClient, packages: str) -> dict[str, bytes]:
    """Download the wheels of packages, for the Python of the base image."""
    say = ["python3", "-c", "import platform; print(platform.python_version())"]
    said = client.containers.run(base_image(), say, network_mode="none", remove=True)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:"]
        command += [f"--platform={name}" for name in PLATFORMS]
        command += ["--python-version", said.decode().strip(), "--dest", folder, *packages.split()]
        subprocess.run(command, check=True, timeout=DOWNLOAD_S)
        return {f"wheels/{path.name}": path.read_bytes() for path in Path(folder).iterdir()}
