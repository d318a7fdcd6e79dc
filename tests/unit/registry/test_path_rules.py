"""Path rules of server functions."""

from __future__ import annotations

import pytest

from registry.errors import BadRequest, FnError, PathDenied
from registry.model.parks import ENGINES
from registry.model.servers import PathRules
from registry.path_rules import (
    RULE_MAX,
    RULES_MAX,
    CompiledPaths,
    Rule,
    Treatment,
    is_ambiguous,
    matches,
    normalise,
    parse_rule,
    parse_rules,
)


def is_match(rule: str, path: bytes, method: bytes = b"GET") -> bool:
    """Return whether a rule matches."""
    return matches(parse_rule(rule), method, path)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("/", Rule(b"", (b"/",))),
        ("*", Rule(b"", (b"", b""))),
        ("/a*", Rule(b"", (b"/a", b""))),
        ("/*/b**c", Rule(b"", (b"/", b"/b", b"c"))),
        ("POST /v1/*", Rule(b"POST", (b"/v1/", b""))),
        ("M-SEARCH *", Rule(b"M-SEARCH", (b"", b""))),
        ("/é", Rule(b"", ("/é".encode(),))),
        ("/.well-known/a..b", Rule(b"", (b"/.well-known/a..b",))),
    ],
)
def test_rules(text: str, rule: Rule) -> None:
    """A rule is a pattern, or a method and a pattern."""
    assert parse_rule(text) == rule


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "GET", "GET ", "get /x", "x", "/a b", "GET  /a", " /a", "/a ", "/a\n", "/a\x7f"),
        *("/a?b", "/a#b", "/a;b", "/a%20", "/a\\b", "/a//b", "//a", "/../a", "/a/..", "/./a", "/."),
        *("1 /a", "GET POST /a", "/" + "a" * RULE_MAX, "/a\u2028"),
    ],
)
def test_malformed_rules_are_refused(text: str) -> None:
    """The text names the expected form and the rule."""
    with pytest.raises(ValueError, match=r"expected \[METHOD \]PATTERN") as caught:
        parse_rule(text)
    assert repr(text[:80]) in str(caught.value)


def test_rules_are_limited() -> None:
    """In length and number."""
    assert (RULE_MAX, RULES_MAX) == (256, 64)
    assert parse_rule("/" + "a" * (RULE_MAX - 1)).parts == (b"/" + b"a" * (RULE_MAX - 1),)
    assert len(parse_rules(("/a",) * RULES_MAX)) == RULES_MAX
    with pytest.raises(ValueError, match="at most 64 rules, got 65"):
        parse_rules(("/a",) * (RULES_MAX + 1))


@pytest.mark.parametrize(
    ("rule", "path", "expected"),
    [
        ("/", b"/", True),
        ("/", b"/a", False),
        ("/a", b"/a", True),
        ("/a", b"/a/", False),
        ("/a", b"/A", False),
        ("*", b"/", True),
        ("*", b"/a/b", True),
        ("/a/*", b"/a/", True),
        ("/a/*", b"/a/b/c", True),
        ("/a/*", b"/a", False),
        ("*.css", b"/a/x.css", True),
        ("*.css", b"/a/x.css/", False),
        ("/a*a", b"/a", False),
        ("/a*a", b"/aa", True),
        ("/*b*c", b"/bc", True),
        ("/*b*c", b"/cb", False),
        ("/*bb*c", b"/abbabc", True),
        ("/*ab*ab", b"/ab", False),
        ("/*ab*ab", b"/abab", True),
        ("/*ab*b", b"/ab", False),
        ("/*ab*ab*", b"/ab", False),
        ("/*ab*ab*", b"/abab", True),
        ("/é", "/é".encode(), True),
    ],
)
def test_patterns(rule: str, path: bytes, expected: bool) -> None:
    """A star stands for any characters, also none."""
    assert is_match(rule, path) is expected


@pytest.mark.parametrize(
    ("rule", "method", "expected"),
    [
        ("/a", b"POST", True),
        ("POST /a", b"POST", True),
        ("POST /a", b"GET", False),
        ("GET /a", b"HEAD", True),
        ("HEAD /a", b"GET", False),
        ("HEAD /a", b"HEAD", True),
        ("POST /a", b"HEAD", False),
    ],
)
def test_methods(rule: str, method: bytes, expected: bool) -> None:
    """HEAD asks for what GET would give."""
    assert is_match(rule, b"/a", method) is expected


def test_many_stars_take_little_time() -> None:
    """Matching has no backtracking: this would not end otherwise."""
    assert is_match("*a" * 120, b"/" + b"a" * 30_000 + b"b") is False


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (b"/", b"/"),
        (b"/a/b", b"/a/b"),
        (b"/a/b/", b"/a/b/"),
        (b"//a///b//", b"/a/b/"),
        (b"//", b"/"),
        (b"/a/./b", b"/a/b"),
        (b"/a/../b", b"/b"),
        (b"/a/..", b"/"),
        (b"/a/b/..", b"/a/"),
        (b"/a/b/.", b"/a/b/"),
        (b"/../../a", b"/a"),
        (b"/...", b"/..."),
        (b"/.a/..b", b"/.a/..b"),
        (b"/%61%2Fb", b"/a/b"),
        (b"/%2e%2e/a", b"/a"),
        (b"/%2561", b"/%61"),
        (b"/%zz%", b"/%zz%"),
        (b"/%C3%A9", "/é".encode()),
        (b"/a;x=1/b;y", b"/a/b"),
        (b"/a;/..;/b", b"/b"),
        (b"/a/;x", b"/a/"),
        (b"/a%3Bx/b", b"/a/b"),
    ],
)
def test_paths_are_normalised(path: bytes, expected: bytes) -> None:
    """Decoded once, slashes merged, dot segments resolved, parameters cut."""
    assert normalise(path) == expected


def test_parameters_may_be_kept() -> None:
    """Servers without parameters of segments see them as names."""
    assert normalise(b"/a;x/b;y/", cuts_parameters=False) == b"/a;x/b;y/"
    assert normalise(b"/a/..;x", cuts_parameters=False) == b"/a/..;x"
    assert normalise(b"/a/b;", cuts_parameters=False) == b"/a/b;"


ASLEEP = Treatment(wakes=False, is_free=False)
AWAKE = Treatment(wakes=True, is_free=False)


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        (b"GET", b"/", AWAKE),
        (b"POST", b"/x", AWAKE),
        (b"GET", b"/favicon.ico", ASLEEP),
        (b"HEAD", b"/robots.txt", ASLEEP),
        (b"GET", b"//robots%2Etxt", ASLEEP),
        (b"GET", b"/health", ASLEEP),
        (b"POST", b"/health", AWAKE),
        (b"GET", b"/health/", AWAKE),
    ],
)
def test_without_rules_nearly_everything_wakes(
    method: bytes, path: bytes, expected: Treatment
) -> None:
    """What browsers, crawlers and probes ask for by themselves does not."""
    assert CompiledPaths(PathRules(), "/health?full=1").judge(method, path) == expected


@pytest.mark.parametrize("ready", ["", "/", "/?x", "//"])
def test_a_probe_of_the_front_page_does_not_keep_it_asleep(ready: str) -> None:
    """Otherwise no visit would wake the function."""
    assert CompiledPaths(PathRules(), ready).judge(b"GET", b"/") == AWAKE


def test_wake_and_free() -> None:
    """Only what `wake` names wakes; `free` is independent of it."""
    paths = CompiledPaths(PathRules(("/", "POST *"), ("/static/*", "/favicon.ico", "/")), "/health")

    assert paths.judge(b"GET", b"/") == Treatment(wakes=True, is_free=True)
    assert paths.judge(b"GET", b"/x") == ASLEEP
    assert paths.judge(b"POST", b"/x") == AWAKE
    assert paths.judge(b"POST", b"/static/x") == Treatment(wakes=True, is_free=True)
    assert paths.judge(b"GET", b"/favicon.ico") == Treatment(wakes=False, is_free=True)
    assert CompiledPaths(PathRules(("*",)), "/h").judge(b"GET", b"/h") == ASLEEP


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (b"/static/a", True),
        (b"/static//a;v=1", True),
        (b"/static/a%20b", True),
        (b"/api/..;/static/a", False),
        (b"/api/../static/a", False),
        (b"/api//../static/a", False),
        (b"/static/%2e%2e/api", False),
        (b"/static/..%2fapi", False),
        (b"/static/%252e%252e/api", False),
        (b"/static;/a", False),
        (b"//static/api", False),
    ],
)
def test_no_spelling_avoids_a_slot(path: bytes, expected: bool) -> None:
    """A path is free if every server takes it for a free one; otherwise it takes a slot."""
    free = CompiledPaths(PathRules(free=("/static/*",)))

    assert free.judge(b"GET", path).is_free is expected


def test_malformed_rules_are_refused_when_compiled() -> None:
    """Each kind is parsed."""
    for rules in (PathRules(wake=("x",)), PathRules(free=("x",)), PathRules(deny=("x",))):
        with pytest.raises(ValueError, match="METHOD"):
            CompiledPaths(rules)


def outcome(deny: str, path: bytes, method: bytes = b"GET") -> type[FnError] | None:
    """Return the error with which a function that denies paths answers."""
    try:
        CompiledPaths(PathRules(deny=("POST /other", deny))).judge(method, path)
    except FnError as error:
        return type(error)
    return None


@pytest.mark.parametrize(
    ("deny", "path", "expected"),
    [
        ("/admin", b"/admin", PathDenied),
        ("/admin", b"/Admin", PathDenied),
        ("/ADMIN", b"/admin", PathDenied),
        ("/admin", b"/admin/", PathDenied),
        ("/admin", b"/admin//", PathDenied),
        ("/admin/", b"/admin", PathDenied),
        ("/admin/*", b"/admin", PathDenied),
        ("/admin/*", b"/admin/x", PathDenied),
        ("/x/admin", b"/x//admin", PathDenied),
        ("/admin", b"/%61dmin", PathDenied),
        ("/admin", b"/admin;x", PathDenied),
        ("/admin", b"/admin%3Bx", PathDenied),
        ("/admin/x", b"/admin;y/x", PathDenied),
        ("*secret*", b"/a;secret", PathDenied),
        ("/", b"/", PathDenied),
        ("/", b"/;x", PathDenied),
        ("*", b"/x", PathDenied),
        ("GET /admin", b"/admin", PathDenied),
        ("POST /admin", b"/admin", None),
        ("/admin", b"/admins", None),
        ("/admin", b"/admin/x", None),
        ("/admin", b"/x/admin", None),
        ("/admin/*", b"/x", None),
        ("/admin", b"/%C3%A9", None),
        ("/admin", b"/a.b/.c/..d", None),
        ("/admin", b"/x/../admin", BadRequest),
        ("/admin", b"/./admin", BadRequest),
        ("/admin", b"//admin", BadRequest),
        ("/admin", b"//x/admin", BadRequest),
        ("/admin", b"///x", BadRequest),
        ("/admin", b"/x/..", BadRequest),
        ("/admin", b"/x/..;/admin", BadRequest),
        ("/admin", b"/.", BadRequest),
        ("/admin", b"/%2e", BadRequest),
        ("/admin", b"/x%2Fadmin", BadRequest),
        ("/admin", b"/x%2fadmin", BadRequest),
        ("/admin", b"/x%5Cadmin", BadRequest),
        ("/admin", b"/%2561dmin", BadRequest),
        ("/admin", b"/admin%00", BadRequest),
        ("/admin", b"/admin%0a", BadRequest),
        ("/admin", b"/admin%1F", BadRequest),
        ("/admin", b"/admin%7f", BadRequest),
        ("/admin", b"/admin%3Fx", BadRequest),
        ("/admin", b"/admin%23x", BadRequest),
        ("/admin", b"/%zz", BadRequest),
        ("/admin", b"/%6", BadRequest),
        ("/admin", b"/%", BadRequest),
        ("/admin", b"/%c0%afadmin", BadRequest),
        ("/admin", b"/%ff", BadRequest),
    ],
)
def test_denied_paths(deny: str, path: bytes, expected: type[FnError] | None) -> None:
    """Every reading of a path counts; a path that servers resolve differently is refused."""
    assert outcome(deny, path) is expected


@pytest.mark.parametrize("path", [b"//a/a", b"/;/a/a", b"/;x=1/a/a", b"/%3b/a/a", b"/%3Bx/a"])
def test_an_authority_in_a_path_is_refused(path: bytes) -> None:
    """Some servers cut it off, and take the rest for the path."""
    assert outcome("/a", path) is BadRequest


def test_denied_methods() -> None:
    """HEAD is denied with GET; each rule counts."""
    assert outcome("GET /a", b"/a", b"HEAD") is PathDenied
    assert outcome("GET /a", b"/a", b"PUT") is None
    assert outcome("GET /a", b"/other", b"POST") is PathDenied


def test_a_method_may_not_be_claimed() -> None:
    """By a field that some servers take for the method."""
    paths = CompiledPaths(PathRules(deny=("DELETE /a",)))

    assert paths.judge(b"POST", b"/a", (b"PUT",)) == AWAKE
    for claimed in ((b"DELETE",), (b"PUT", b"DELETE")):
        with pytest.raises(PathDenied):
            paths.judge(b"POST", b"/a", claimed)
        assert paths.judge(b"POST", b"/b", claimed) == AWAKE


def test_without_deny_nothing_is_ambiguous() -> None:
    """Paths are the server's affair."""
    paths = CompiledPaths(PathRules(("/a",), ("/b",)))

    assert paths.judge(b"GET", b"/x/../%61") == AWAKE
    assert paths.judge(b"GET", b"/%ff%2F%zz") == ASLEEP


@pytest.mark.parametrize("path", [b"/%20", b"/%3A", b"/%7E", b"/%41", b"/%24", b"/%26", b"/a%2B"])
def test_plain_escapes_are_not_ambiguous(path: bytes) -> None:
    """Servers agree about them."""
    assert is_ambiguous(path) is False
    assert is_ambiguous(b"/plain") is False


def control_outcome(engine: str, path: bytes, method: bytes) -> type[FnError] | None:
    """Return the error with which a function that is parked by a preset answers."""
    try:
        CompiledPaths(PathRules(), "", ENGINES[engine].control).judge(method, path)
    except FnError as error:
        return type(error)
    return None


CONTROL_CALLS = {
    "vllm": "sleep?level=2 wake_up is_sleeping collective_rpc reset_prefix_cache reset_mm_cache"
    " reset_encoder_cache server_info pause resume is_paused abort_requests update_weights"
    " init_weight_transfer_engine start_weight_update start_draft_weight_update weight_info"
    " finish_weight_update update_weight_version weight_checker get_world_size scale_elastic_ep"
    " start_profile stop_profile v1/load_lora_adapter v1/unload_lora_adapter",
    "sglang": "release_memory_occupation resume_memory_occupation flush_cache abort_request"
    " update_weights_from_disk update_weights_from_tensor update_weights_from_distributed"
    " update_weight_version init_weights_update_group destroy_weights_update_group"
    " init_weights_send_group_for_remote_instance send_weights_to_remote_instance"
    " get_weights_by_name weights_checker pause_generation continue_generation open_session"
    " close_session start_expert_distribution_record set_internal_state configure_logging slow_down"
    " freeze_gc start_profile stop_profile load_lora_adapter load_lora_adapter_from_tensors"
    " unload_lora_adapter clear_hicache_storage_backend",
}


@pytest.mark.parametrize("engine", ENGINES)
def test_no_caller_reaches_an_engines_control_calls(engine: str) -> None:
    """In no spelling, by no method, and not behind a prefix that the engine takes off a path."""
    known = ENGINES[engine]
    own = [one.path for one in (known.sleep, known.wake, known.check) if one]
    called = [f"/{one}" for one in CONTROL_CALLS[engine].split()]
    for path in {one.partition("?")[0] for one in (*own, *called)}:
        for spelled in (path, path.upper(), f"{path}/", f"/{path[1:]};x", f"/root{path}"):
            for method in (b"GET", b"POST"):
                assert control_outcome(engine, spelled.encode(), method) is PathDenied, spelled


@pytest.mark.parametrize("engine", ENGINES)
def test_what_an_engine_is_for_stays_open(engine: str) -> None:
    """Completions, and what clients ask besides."""
    served = "v1/chat/completions v1/completions v1/embeddings v1/models v1/models/my-weights"
    others = "health metrics version ping tokenize detokenize generate score rerank classify"
    for path in f"{served} {others}".split():
        assert control_outcome(engine, f"/{path}".encode(), b"POST") is None, path


def test_control_calls_are_denied_beside_the_owners_rules() -> None:
    """Also where the owner has as many as there may be."""
    rules = PathRules(deny=tuple(f"/x{number}" for number in range(RULES_MAX)))
    paths = CompiledPaths(rules, "", ENGINES["vllm"].control)
    assert paths.denies
    for path in (b"/x0", b"/sleep"):
        with pytest.raises(PathDenied):
            paths.judge(b"POST", path)
