"""Tests of the names of images, and of patterns for them."""

from __future__ import annotations

import pytest

from pool_manager.image_names import Reference, check_pattern, is_listed, may_be_id
from registry.errors import DriverError


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("nginx", ("nginx", "latest")),
        ("nginx:1.27", ("nginx", "1.27")),
        ("host:5000/nginx", ("host:5000/nginx", "latest")),
        ("host:5000/a/b:x", ("host:5000/a/b", "x")),
        ("a:1@sha256:ab", ("a", "sha256:ab")),
        ("host:5000/a@sha256:ab", ("host:5000/a", "sha256:ab")),
    ],
)
def test_references_have_a_repository_and_a_version(text: str, parts: tuple[str, str]) -> None:
    """The tag is latest unless named; a digest outweighs a tag; a port is no tag."""
    assert Reference.parse(text) == parts


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("nginx", "docker.io/library/nginx:latest"),
        ("library/nginx:1", "docker.io/library/nginx:1"),
        ("docker.io/nginx", "docker.io/library/nginx:latest"),
        ("index.docker.io/nginx:1", "docker.io/library/nginx:1"),
        ("acme/app", "docker.io/acme/app:latest"),
        ("ghcr.io/acme/app:1@sha256:ab", "ghcr.io/acme/app@sha256:ab"),
        ("registry.lan:5000/app", "registry.lan:5000/app:latest"),
        ("registry:5000/app", "registry:5000/app:latest"),
        ("localhost/app", "localhost/app:latest"),
        ("registry:5000", "docker.io/library/registry:5000"),
    ],
)
def test_a_full_name_is_that_of_docker(text: str, full: str) -> None:
    """All spellings of a name that docker takes for one are one."""
    assert Reference.parse(text).full() == full


@pytest.mark.parametrize("text", ["-a.example/app", "a.-/app"])
def test_no_registry_begins_or_ends_with_a_hyphen(text: str) -> None:
    """Such a name is refused, and named."""
    with pytest.raises(DriverError, match="is no image"):
        Reference.parse(text).full()


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("sha256:" + "a" * 64, True),
        ("sha256:abcdef", True),
        ("sha256:latest", True),
        ("a" * 64, True),
        ("abcd", True),
        ("0123456789ab", True),
        ("abc", False),
        ("abcd:latest", False),
        ("docker.io/library/abcd", False),
        ("nginx", False),
    ],
)
def test_what_may_be_an_id(text: str, *, is_one: bool) -> None:
    """Engines look up ids by their beginning, too, with or without the kind of digest."""
    assert may_be_id(text) is is_one


@pytest.mark.parametrize(
    ("pattern", "listed", "others"),
    [
        ("ghcr.io/acme/app", ["ghcr.io/acme/app:2"], ["ghcr.io/acme/app2", "ghcr.io/acme/app/x"]),
        (
            "ghcr.io/acme/*",
            ["ghcr.io/acme/app", "ghcr.io/acme/team/app@sha256:ab"],
            ["ghcr.io/acme", "ghcr.io/acme2/app", "ghcr.io.evil.example/acme/app", "acme/app"],
        ),
        ("ghcr.io/*", ["ghcr.io/a", "ghcr.io/a/b"], ["ghcr.io:444/a", "ghcr.io.x/a", "xghcr.io/a"]),
        ("reg.lan:5000/*", ["reg.lan:5000/app"], ["reg.lan/app", "reg.lan:50001/a"]),
        ("nginx", ["nginx:1", "docker.io/library/nginx"], ["acme/nginx", "ghcr.io/library/nginx"]),
        ("acme/*", ["acme/app", "index.docker.io/acme/app"], ["acme", "ghcr.io/acme/app"]),
        ("library/*", ["nginx", "docker.io/nginx"], ["acme/app"]),
        ("docker.io/*", ["nginx", "acme/app"], ["localhost/nginx"]),
        ("*", ["nginx", "ghcr.io/a/b"], []),
    ],
)  # fmt: skip
def test_patterns_list_repositories(pattern: str, listed: list[str], others: list[str]) -> None:
    """A pattern has one repository, or all below a name; never the beginning of a name's part, and
    never a registry whose name only begins in the same way."""
    assert check_pattern(pattern) == pattern

    found = [
        one
        for one in (*listed, *others)
        if is_listed(Reference.parse(one).full_repository(), [pattern])
    ]
    assert found == listed


@pytest.mark.parametrize(
    "pattern",
    [
        *("", "ghcr.io", "localhost", "registry.lan:5000", "nginx:1.27", "nginx@sha256:ab"),
        *("ghcr.io/acme/app:1", "GHCR.io/acme/*", "ghcr.io*", "ghcr.io/ac*", "ghcr.io/*/app"),
        *("*/app", "**", "ghcr.io//app", "/app", "app/", "ghcr.io/acme/**", "a b", "http://a/b"),
        *("ghcr.io/acme/*\n", "ghcr.io/../app", "-a/b"),
    ],
)
def test_a_bad_pattern_is_refused(pattern: str) -> None:
    """Tags, digests, upper case and stars elsewhere are refused; the text names the form."""
    with pytest.raises(ValueError, match="expected a repository such as"):
        check_pattern(pattern)


def test_a_registry_alone_is_told_how_to_list_all_of_it() -> None:
    """A name that docker would take for a repository of its own hub is most likely a mistake."""
    with pytest.raises(ValueError, match=r"all of the registry are ghcr\.io/\*"):
        check_pattern("ghcr.io")
