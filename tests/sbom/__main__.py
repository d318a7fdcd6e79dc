"""Command that writes the bills of materials: `python -m tests.sbom FOLDER [--image NAME]
[--engine URL]`.

That of the wheel needs no engine; that of an image needs one which has the image.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import docker
from cyclonedx.validation.json import JsonStrictValidator

from admin.cli.options import DEFAULT_ENGINE
from admin.image.containers import run_python
from admin.image.context import engine_errors, image_error
from registry.errors import FnError
from runtime_image.lock import FILE, normal, parse
from tests.sbom.bill import (
    SCHEMA,
    Bom,
    License,
    document,
    installed,
    licences,
    of_image,
    of_wheel,
)

ROOT = Path(__file__).resolve().parents[2]
IMAGE = "fngate-runtime:cpu"
BUILD = "sbom"
LISTING = """\
import json
from importlib.metadata import distributions
from pathlib import Path
def facts(of):
    fields = ("Name", "Version", "License-Expression", "License")
    found = {name: str(of.get(name) or "")[:200] for name in fields}
    return {**found, "Classifier": [c for c in of.get_all("Classifier") or [] if "License" in c]}
def read(path):
    return Path(path).read_text() if Path(path).is_file() else ""
kept = ("Package:", "Status:", "Version:", "Architecture:")
lines = read("/var/lib/dpkg/status").splitlines()
dpkg = "\\n".join(line for line in lines if not line or line.startswith(kept))
packages = [facts(one.metadata) for one in distributions()]
print(json.dumps({"python": packages, "dpkg": dpkg, "os": read("/etc/os-release")}))
"""


def of_checkout(known: dict[str, list[License]]) -> Bom:
    """Return the bill of this checkout's wheel, with licences by pin."""
    pages = (ROOT / "admin/dashboard/package-lock.json").read_text("utf-8")
    pyproject = (ROOT / "pyproject.toml").read_text("utf-8")
    return of_wheel(parse((ROOT / FILE).read_text("utf-8")), pyproject, pages, known)


def wheel() -> Bom:
    """Return the same with all licences that this environment or pip's index knows."""
    bill = of_checkout(installed())
    bare = [f"{part.name}=={part.version}" for part in bill.components if not part.licenses]
    return of_checkout({**installed(), **asked(bare)}) if bare else bill


def asked(pins: list[str]) -> dict[str, list[License]]:
    """Return the licences of packages that are not installed here, by pin, as pip's index has them;
    nothing without an index."""
    options = ["--dry-run", "--ignore-installed", "--no-deps", "--only-binary", ":all:", "--quiet"]
    command = [sys.executable, "-m", "pip", "install", *options, "--retries", "1", "--report", "-"]
    done = subprocess.run([*command, *pins], capture_output=True, text=True, check=False)
    if done.returncode:
        return {}
    found = {}
    for one in json.loads(done.stdout)["install"]:
        of = one["metadata"]
        fields = {"License-Expression": of.get("license_expression"), "License": of.get("license")}
        known = licences({**fields, "Classifier": of.get("classifier", [])})
        found[f"{normal(of['name'])}=={of['version']}"] = known
    return found


def image(name: str, engine: str) -> Bom:
    """Return the bill of an image on an engine. Raises EngineDown or ImageError."""
    with engine_errors(engine):
        client = docker.APIClient(base_url=engine, version="auto", timeout=60)
        with closing(client):
            id_ = str(client.inspect_image(name)["Id"])
            code, said = run_python(client, name, LISTING, BUILD)
    if code:
        raise image_error(f"{name} cannot list its packages", tail=said.splitlines())
    entries = parse((ROOT / FILE).read_text("utf-8"))
    return of_image(name, id_, json.loads(said.splitlines()[-1]), entries)


def write(bill: Bom, path: Path) -> None:
    """Write a bill, checked against the schema, and say what it lacks."""
    text = document(bill)
    if error := JsonStrictValidator(SCHEMA).validate_str(text):
        sys.exit(f"error: {path.name} is not CycloneDX: {str(error).splitlines()[0]}")
    path.write_text(text, "utf-8")
    bare = sorted(part.name for part in bill.components if not part.licenses)
    say(f"{path}: {len(bill.components)} components, {len(bare)} without a known licence")


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{text}\n")


def main(words: list[str]) -> int:
    """Write both bills; return 1 if an image was named that has none."""
    parser = argparse.ArgumentParser(prog="python -m tests.sbom", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--image", help=f"name of an image, {IMAGE} by default")
    parser.add_argument("--engine", default=os.environ.get("FN_DOCKER_HOST", DEFAULT_ENGINE))
    given = parser.parse_args(words)
    given.folder.mkdir(parents=True, exist_ok=True)
    bill = wheel()
    write(bill, given.folder / f"fngate-{bill.metadata.component.version}.cdx.json")
    name = given.image or IMAGE
    try:
        write(image(name, given.engine), given.folder / f"{name.replace(':', '-')}.cdx.json")
    except FnError as error:
        say(f"no bill of the image {name}: {error.message}")
        say("-> fnctl image build cpu, or make sbom SBOM='--engine URL --image NAME'")
        return 1 if given.image else 0
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
