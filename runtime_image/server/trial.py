"""Samples of a trial: requests to a server that is ready, and what it answered."""

from __future__ import annotations

import contextlib
import http.client
import time
from pathlib import Path
from typing import Any, Final, cast

from runtime_image.contract.samples import (
    CONTENT_TYPE_MAX,
    GOLDEN_TRIAL_S,
    STATUS_MAX,
    GoldenSample,
    SampleRequest,
    budget_ms,
    golden_to_json,
)
from runtime_image.contract.server import BODY_SHOWN_MAX, DESCRIPTION_MAX, ServerSpec
from runtime_image.server.asking import (
    Asked,
    SampleError,
    TimedSocket,
    ask,
    body_of,
    connection,
)
from runtime_image.server.connecting import Server
from runtime_image.server.golden.requests import NO_ENDPOINT, Candidate, candidates
from runtime_image.server.golden.rules import ASKS, NotLearnt, learn, rule_of

BODY_S: Final = 5.0
"""Seconds for which the body of an answer is read: a stream may have no end."""
REASON_BODY_MAX: Final = 300
"""Max characters of an answer in the reason of a failure."""
OTHER_HOST: Final = "fngate.example"
"""A name that no server knows (RFC 6761 section 6.5)."""
GUARDED: Final = frozenset({400, 403, 421})
"""Statuses for a Host that a server does not know: of Django; of Ollama, Jupyter and Vite; of the
SDKs for MCP."""
HOST_S: Final = 5.0
DESCRIPTION_S: Final = 10.0
"""Seconds in which a server describes its calls."""


def run_samples(spec: ServerSpec, server: Server, folder: Path) -> list[dict[str, Any]]:
    """Send all samples, one after the other; return what the report shows of each.

    Blocks. Raises SampleError with the answer expected and the one got.
    """
    return [_run(sample, server, folder, spec.max_s) for sample in spec.samples]


def checks_host(spec: ServerSpec, server: Server) -> bool:
    """Return whether a server refuses a Host that it does not know, where it answers its own
    address: a guard against DNS rebinding. Blocks. False where a request fails."""
    path = spec.ready or "/"
    if spec.host:
        return False
    try:
        refused = _status(server, path, OTHER_HOST)
        return refused in GUARDED and _status(server, path, server.name) != refused
    except (SampleError, OSError, ValueError, http.client.HTTPException):
        return False


def _status(server: Server, path: str, host: str) -> int:
    with connection(server, HOST_S, f"GET {path}") as client:
        client.request("GET", path, headers={"Host": host})
        return client.getresponse().status


def describe_calls(spec: ServerSpec, server: Server) -> dict[str, str]:
    """Return what a server says of its calls as `description`, a text that nobody has checked, or
    why there is none as `no_description`; {} for a server that has none. Blocks."""
    if not spec.description:
        return {}
    name = f"GET {spec.description}"
    try:
        with connection(server, DESCRIPTION_S, name) as client:
            client.request("GET", spec.description, headers={"Host": server.name})
            answer = client.getresponse()
            body = answer.read(DESCRIPTION_MAX + 1)
    except (SampleError, OSError, ValueError, http.client.HTTPException) as error:
        return {"no_description": f"{name}: expected an answer, got {str(error) or error!r}"}
    if answer.status != http.client.OK:
        return {"no_description": f"{name}: expected 200, got {answer.status} {answer.reason}"}
    if len(body) > DESCRIPTION_MAX:
        return {"no_description": f"{name}: expected at most {DESCRIPTION_MAX} bytes, got more"}
    if answer.length:
        return {"no_description": f"{name}: expected {answer.length} more bytes, got the end"}
    return {"description": body.decode("utf-8", "replace")}


def learn_golden(spec: ServerSpec, server: Server, folder: Path, start_ms: float) -> dict[str, Any]:
    """Return what a report says of the golden sample: `golden` as JSON, or `no_golden` with the
    reason; {} where none is wanted. The server answers nobody else meanwhile. Blocks, at most
    GOLDEN_TRIAL_S. `start_ms` is the time of the start."""
    plan = spec.golden_plan
    if plan is None:
        return {}
    until, absent, reasons = time.monotonic() + GOLDEN_TRIAL_S, set[str](), []
    try:
        for candidate in candidates(plan):
            path = candidate.request.path
            if path in absent:
                continue
            if candidate.rules:  # of a marked sample the trial has had an answer
                status, reason = _try(candidate, server, folder, until)
                if status in NO_ENDPOINT:
                    absent.add(path)
                if reason:
                    reasons.append(f"{path}: {reason}")
                    continue
            asked = [_ask(candidate, server, folder, until) for _ in range(ASKS)]
            return {"golden": golden_to_json(_learnt(candidate, asked, start_ms))}
    except (NotLearnt, SampleError) as error:
        return {"no_golden": str(error)}
    return {"no_golden": "; ".join(dict.fromkeys(reasons))}


def _try(candidate: Candidate, server: Server, folder: Path, until: float) -> tuple[int, str]:
    """Return the status of a first answer, and why the request cannot make a golden sample, "" if
    it can. The first answer may take longer than others: some engines compile for it."""
    try:
        answer = _ask(candidate, server, folder, until).answer
    except SampleError as error:
        return 0, str(error)
    if answer.status != http.client.OK:
        return answer.status, f"expected 200, got {answer.status}"
    rule = rule_of([answer])
    if rule not in candidate.rules or (candidate.needs_prompt and not answer.prompt):
        wanted = " of the prompt" if candidate.needs_prompt else ""
        return answer.status, f"expected {' or '.join(candidate.rules)}{wanted}, got {rule}"
    return answer.status, ""


def _ask(candidate: Candidate, server: Server, folder: Path, until: float) -> Asked:
    left_s = until - time.monotonic()
    if left_s <= 0:
        raise SampleError(f"expected an end within {GOLDEN_TRIAL_S:g} s, got none")
    return ask(candidate.request, server, folder, left_s)


def _learnt(candidate: Candidate, asked: list[Asked], start_ms: float) -> GoldenSample:
    """Return the golden sample by three answers. Raises NotLearnt also if it takes too long."""
    answers, times_ms = [one.answer for one in asked], [one.ms for one in asked]
    sample = learn(candidate.request, answers, times_ms, candidate.rules)
    most_ms = budget_ms(start_ms)
    if sample.usual_ms > most_ms:
        raise NotLearnt(
            f"it takes {sample.usual_ms:.0f} ms, more than {most_ms:.0f} ms (250 ms, or 5 % of the"
            " start)"
        )
    return sample


def _run(sample: SampleRequest, server: Server, folder: Path, max_s: float) -> dict[str, Any]:
    body = body_of(sample, folder)
    name = f"{sample.method} {sample.path}"
    began = time.monotonic()
    with connection(server, max_s, name) as client:
        sock = cast("TimedSocket", client.sock)
        try:
            headers = {"Host": server.name, **sample.headers}
            client.request(sample.method, sample.path, body, headers)
            answer = client.getresponse()
            ms = (time.monotonic() - began) * 1e3
            shown = _beginning(answer, sock)
        except (OSError, ValueError, http.client.HTTPException) as error:
            waited_s = time.monotonic() - began
            what = f"no answer within {max_s:g} s" if waited_s >= max_s else repr(error)
            raise SampleError(f"{name}: expected {_expected(sample)}, got {what}") from error
    text = shown.decode("utf-8", "replace")
    if not sample.accepts(answer.status):
        got = f"{answer.status} {answer.reason}: {text[:REASON_BODY_MAX]}"
        raise SampleError(f"{name}: expected {_expected(sample)}, got {got}")
    return {
        "method": sample.method,
        "path": sample.path,
        "status": answer.status,
        "ms": round(ms, 3),
        "content_type": answer.headers.get("Content-Type", "")[:CONTENT_TYPE_MAX],
        "body": text,
    }


def _expected(sample: SampleRequest) -> str:
    return f"status {sample.status}" if sample.status else f"a status below {STATUS_MAX}"


def _beginning(answer: http.client.HTTPResponse, sock: TimedSocket) -> bytes:
    """Return the first bytes of the body, as far as they come within BODY_S."""
    sock.until = min(sock.until, time.monotonic() + BODY_S)
    body = b""
    with contextlib.suppress(TimeoutError):
        while part := answer.read1(BODY_SHOWN_MAX - len(body)):
            body += part
    return body
