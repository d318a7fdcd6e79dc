"""Command that runs schemathesis: `python -m tests.api ST CASES`, where ST is its program.

The event stream and the requests that wait by design are left out: they have tests of their own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.described import described_routes
from tests.support.fake_driver.opening import PROGRAM
from tests.support.process_server import server_process

MODEL = b"\x3a\x00"
"""The fake driver reads no model."""
SERVER = 'schema = 1\n[server]\ncommand = "serve ${PORT}"\n[openai]\n'
LEFT_OUT = r"^/admin/v1/(events|access/token|functions/\{name\}/(warm|logs))$"
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)
FORBIDDEN = re.compile(r"\[(?:500|502|504)\]")
ENVIRONMENT = {"FN_STANDBYS": "0"}


def main(program: str, cases: int) -> int:
    """Run at least about this number of cases; return the exit code."""
    routes = [one for one in described_routes().values() if not re.match(LEFT_OUT, one.path)]
    with tempfile.TemporaryDirectory(prefix="fn-") as folder:
        model = Path(folder) / "m.onnx"
        model.write_bytes(MODEL)
        web = Path(folder) / "web"
        web.mkdir()
        (web / "function.toml").write_text(SERVER)
        with server_process(
            Path(folder) / "data", environment=ENVIRONMENT, program=PROGRAM
        ) as server:
            for words in (
                (str(model), "--name", "f"),
                (str(web), "--trust"),
            ):
                deployed = server.fnctl("deploy", *words)
                assert deployed.returncode == 0, deployed.stderr
            added = server.fnctl("alias", "add", "web", "other")
            assert added.returncode == 0, added.stderr
            command = [
                *(program, "run", f"{server.url}/openapi.json", "--url", server.url),
                *("-H", f"Authorization: Bearer {server.token}"),
                *("--checks", ",".join(CHECKS), "--phases", "coverage,fuzzing"),
                *("--max-examples", str(max(1, cases // len(routes)))),
                *("--exclude-path-regex", LEFT_OUT, "--continue-on-failure", "--no-color"),
                *("--workers", "1"),
            ]
            place = Path(__file__).parent
            # schemathesis loads its hooks by name, and must not see the modules beside them.
            given = {**os.environ, "SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": str(place)}
            return run(command, given, folder)


def run(command: list[str], environment: dict[str, str], folder: str) -> int:
    """Run a command and show its output; return its exit code, or 1 if an answer is forbidden."""
    is_forbidden = False
    with subprocess.Popen(
        command, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        for line in running.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            is_forbidden |= FORBIDDEN.match(line) is not None
    return running.returncode or int(is_forbidden)


if __name__ == "__main__":
    # The path is absolute, since the command runs in a folder of its own.
    sys.exit(main(str(Path(sys.argv[1]).absolute()), int(sys.argv[2])))
