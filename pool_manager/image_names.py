"""Names of images as container engines resolve them, and patterns of their repositories. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from registry.errors import DriverError

HUB: Final = "docker.io"
"""Registry of names without one."""
LIBRARY: Final = "library/"
"""Folder there of names without a folder."""
EVERY: Final = "*"
PINNED: Final = "fngate/pinned"
"""Repository of the tags of images that revisions use: ID.OWNER, both in hex."""
PULLED: Final = "fngate/pulled"
"""Repository of the tags of images that deploys have pulled."""
PATTERN_FORM: Final = (
    "a repository such as ghcr.io/acme/app, all below a name such as ghcr.io/acme/*, or *; in lower"
    " case, without tag and digest"
)
_PART: Final = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_PATTERN: Final = re.compile(rf"{_PART}(?::[0-9]{{1,5}}(?=/))?(?:/{_PART})*(?:/\*)?")
_ID: Final = re.compile(r"sha256:.*|(?:[0-9a-f]{4,64})")
"""Texts that engines may take for the id of an image, or for the beginning of one."""
_DIGEST: Final = re.compile(r"(?<![0-9a-z])sha256:[0-9a-f]{64}\Z")
IMAGE_DIGEST: Final = "image_digest"
"""Member of a trial's report: `HostFacts.digest_of`. A replica cannot set it."""


class Reference(NamedTuple):
    """A reference of an image in its parts; `version` is its digest or its tag."""

    repository: str
    version: str

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Split a reference; the tag is latest unless named, and a digest outweighs a tag."""
        name, at, digest = text.partition("@")
        repository, colon, tag = name.rpartition(":")
        if not colon or "/" in tag:
            repository, tag = name, ""
        return cls(repository, digest if at else tag or "latest")

    def resolved(self) -> tuple[str, str]:
        """Return the registry and the name there, as docker resolves them. Raises DriverError."""
        registry, slash, name = self.repository.partition("/")
        if not slash or not _is_registry(registry):
            registry, name = HUB, self.repository
        if registry.startswith("-") or registry.endswith("-"):
            raise DriverError(f"{self.repository} is no image: the registry is {registry}")
        if registry == f"index.{HUB}":
            registry = HUB
        is_official = registry == HUB and "/" not in name
        return registry, f"{LIBRARY}{name}" if is_official else name

    def full_repository(self) -> str:
        """Return the repository with its registry, which no other name of it has. Raises
        DriverError."""
        return "/".join(self.resolved())

    def full(self) -> str:
        """Return the whole reference, which engines take for no id. Raises DriverError."""
        mark = "@" if self.version.startswith("sha256:") else ":"
        return f"{self.full_repository()}{mark}{self.version}"


def _is_registry(part: str) -> bool:
    """Return whether the first part of a name is a registry, and not a folder of HUB."""
    return "." in part or ":" in part or part == "localhost"


def may_be_id(text: str) -> bool:
    """Return whether an engine may take a text for an image's id, in full or shortened."""
    return _ID.fullmatch(text) is not None


def pinned_by(reference: str, digest: str) -> str:
    """Return the reference of an image by a digest that an engine reports, which may stand behind a
    name; "" for anything else."""
    found = _DIGEST.search(digest)
    try:
        return f"{Reference.parse(reference).full_repository()}@{found[0]}" if found else ""
    except DriverError:
        return ""


def check_pattern(text: str) -> str:
    """Return a pattern of repositories. Raises ValueError that states the expected format."""
    if text == EVERY:
        return text
    if not _PATTERN.fullmatch(text):
        raise ValueError(f"expected {PATTERN_FORM}")
    if "/" not in text and _is_registry(text):
        raise ValueError(f"expected {PATTERN_FORM}; all of the registry are {text}/*")
    return text


def is_listed(repository: str, patterns: Iterable[str]) -> bool:
    """Return whether patterns have a repository, as `full_repository` returns it."""
    return any(_matches(repository, one) for one in patterns)


def _matches(repository: str, pattern: str) -> bool:
    if pattern == EVERY:
        return True
    above, star, _ = pattern.rpartition("/*")
    if not star:
        return Reference(pattern, "").full_repository() == repository
    # With a name of two parts, which LIBRARY is not added to.
    below = Reference(f"{above}/a/b", "").full_repository()
    return repository.startswith(below.removesuffix("a/b"))
