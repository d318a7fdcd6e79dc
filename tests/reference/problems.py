"""docs/reference/problems.md: the errors that callers get."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from gateway.problem_document import ProblemMembers
from gateway.statuses import STATUS
from registry.errors import FnError
from tests.reference.markdown import code, items, page, table, words, wrapped

TITLE = "Problem codes"
INTRO = """
Every error is `application/problem+json` (RFC 9457). Clients decide by `code`, which never changes;
`title` and `detail` are for people. Below `/v2` it is `{"error": TEXT}`, as the Open Inference
Protocol has it, and the code is in the header `Fn-Problem`.
"""
KEYS = {
    "type": "`urn:fngate:problem:CODE`.",
    "title": "Short name of the error, the same for each error of a code.",
    "status": "Status of the answer.",
    "detail": "What happened in this case.",
    "code": "One of the codes below.",
    "retry_after_s": (
        "Seconds until a retry makes sense. The header `Retry-After` has the same number."
    ),
}
"""Keys that any problem may have."""
COMPARED = ("bad_input", "bad_manifest", "not_acceptable", "unsupported_type")
EXTRA = {
    "accepted": (("unsupported_encoding",), "Content codings that the server decodes."),
    "allow": (("method_not_allowed",), "Methods of the route, also in the header `Allow`."),
    "breaks": (("incompatible",), "Changes that would break callers, one text each."),
    "checks": (
        ("host_refused",),
        "Results of all checks of the host, as `fnctl doctor` shows them.",
    ),
    "error": (("too_many_connections",), "The text again, for clients of `/v2`."),
    "expected": (COMPARED, "Expected type or value."),
    "function": (("conflict",), "Function that has the name, or the alias, already."),
    "functions": (("conflict",), "Functions that need the secret or the environment."),
    "got": (COMPARED, "Value that came."),
    "hint": (("host_refused",), "Remedy."),
    "host_key": (("host_refused",), "Public key that a host without a known key has shown."),
    "input": (("bad_input",), "Input that is wrong."),
    "kept_by": (
        ("wait_budget_over",),
        "Functions whose `min` keeps the devices. Only with a key of the scope `admin`.",
    ),
    "key": (("bad_manifest",), "Dotted key of `function.toml`."),
    "known": (("bad_manifest",), "Keys that the table knows."),
    "log_tail": (
        ("function_failing", "model_refused", "trial_killed"),
        "Last lines of the replica's log. Only with a key of the scope `admin`.",
    ),
    "nearest": (
        ("unknown_function", "unknown_model", "bad_manifest"),
        "Names that resemble the unknown one.",
    ),
    "next": (("engine_down",), "Command of `fnctl` that may help."),
    "param": (("bad_request",), "Member of the request that is wrong, at `/v1`."),
    "node": (("model_refused",), "Node of the model that has a compiled part."),
    "parity": (
        ("build_failed",),
        "Agreement of each output of the compiled model with that of the ordinary one.",
    ),
    "path": (("bad_bundle", "model_refused"), "File of the bundle."),
    "revisions": (("unknown_revision",), "Numbers of the revisions that exist."),
    "rule": (("bad_bundle",), "Rule that the file breaks."),
    "stage": (("model_refused", "trial_killed"), "Stage of the deploy that failed."),
}
"""Keys that some codes add."""
OF_FNCTL = ("next",)
"""Keys of errors of `fnctl` itself, which no server sends."""


def document() -> str:
    """The page. Raises ValueError where EXTRA does not fit the code."""
    named = {*ProblemMembers.__struct_fields__, *OF_FNCTL} - KEYS.keys()
    if named != EXTRA.keys():
        raise ValueError(f"EXTRA does not fit the code: {named ^ EXTRA.keys()}")
    kinds = sorted(STATUS, key=lambda kind: (STATUS[kind], kind.code))
    rows = ((str(STATUS[kind]), f"[{code(kind.code)}](#{kind.code})", kind.title) for kind in kinds)
    keys = table(("key", "meaning"), ((code(name), text) for name, text in KEYS.items()))
    blocks = [
        "## Keys of every problem",
        keys,
        "Some codes add keys; the sections below list them.",
        "## All codes",
        table(("status", "code", "title"), rows),
    ]
    for status, group in groupby(kinds, key=STATUS.__getitem__):
        blocks.append(f"## Status {status}")
        for kind in group:
            blocks += _section(kind)
    return page(TITLE, INTRO, *blocks)


def _section(kind: type[FnError]) -> Iterator[str]:
    yield f"### {code(kind.code)}"
    yield wrapped(f"{kind.title}. {words(kind)}")
    extra = [f"{code(key)}: {text}" for key, (codes, text) in EXTRA.items() if kind.code in codes]
    if extra:
        yield items(extra)
