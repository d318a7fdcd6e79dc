"""The seccomp filter in this kernel. Each test uses a process of its own, because a filter is
permanent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from runtime_image.seccomp import install as installing

pytestmark = pytest.mark.slow

TRIED = """
import json, socket, subprocess, threading
from runtime_image.seccomp.install import install
from runtime_image.seccomp.probe import let_through, withheld

asked, found = threading.Event(), []

def look():
    asked.wait()
    found.append(let_through())

early = threading.Thread(target=look)
early.start()
before = len(let_through())
install()
asked.set()
early.join()
child = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True)
status = dict(line.split(":", 1) for line in child.stdout.splitlines())
print(json.dumps({
    "before": before,
    "after": let_through(),
    "in an earlier thread": found[0],
    "withheld": withheld(),
    "child": [status[name].strip() for name in ("NoNewPrivs", "Seccomp")],
    "interfaces": bool(socket.if_nameindex()),
}))
"""


def run(code: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-I", "-c", code], stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_each_refused_call_is_refused() -> None:
    """Every call on the list is refused, also in earlier threads and in children; other calls
    work."""
    found = run(TRIED)

    assert found.pop("before") > 10
    assert found == {
        "after": [],
        "in an earlier thread": [],
        "withheld": [],
        "child": ["1", "2"],
        "interfaces": True,
    }


def test_a_machine_without_a_filter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica does not start on a machine without a filter."""
    names = os.uname_result(("Linux", "host", "6", "1", "riscv64"))
    monkeypatch.setattr(os, "uname", lambda: names)

    with pytest.raises(OSError, match="expected x86_64 or aarch64, got riscv64"):
        installing.install()
