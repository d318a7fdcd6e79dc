"""Tests of what an image may be, and of its server's user id."""

from __future__ import annotations

import pytest

from admin.deploy.image_rules import NamedImages, ReservedIds, Source, check_user, user_of
from registry.errors import WrongScope
from registry.model.servers import ServerImage, ServerSettings

DEPLOY = ("read", "deploy")
ADMIN = ("admin",)
POOL = range(1_000_000, 1_065_536)
IDS = ReservedIds(frozenset({1000, 1001}), POOL)
MAPPED = ReservedIds(frozenset({1000, 1001}), POOL, is_mapped=True)
ROOT = "root (user id 0)"
OWN = "user id 1000, which is this server's own"
OF_A_REPLICA = "user id {}, which is one of the replicas' (FN_REPLICA_UIDS)"
ID = "sha256:" + "a" * 64


def any_id(name: str) -> str:
    return f"the user {name!r}, which may be any user id"


@pytest.mark.parametrize(
    ("user", "problem", "mapped"),
    [
        ("10001", "", ""),
        ("10001:0", "", ""),
        ("10001:staff", "", ""),
        ("2147483647", "", ""),
        ("", f"{ROOT}, as the image names no user", ""),
        (":5", f"{ROOT}, as the image names no user", ""),
        ("0", ROOT, ""),
        ("0:1000", ROOT, ""),
        ("1000", OWN, ""),
        ("1000:2000", OWN, ""),
        ("1000000", OF_A_REPLICA.format(1_000_000), OF_A_REPLICA.format(1_000_000)),
        ("1065535:1", OF_A_REPLICA.format(1_065_535), OF_A_REPLICA.format(1_065_535)),
        ("1065536", "", ""),
        *(
            (text, any_id(text.partition(":")[0]), any_id(text.partition(":")[0]))
            for text in (
                *("app", "root", "root:root", "00", "+0", "-0", "-1", " 0", "0 ", "01000", "1_0"),
                *("0x0", "0b0", "1e3", "4294967296", "4294968296", "2147483648", "99999999999"),
                *("\u0660", "\u0661\u0660", "\uff10", "1000\n", "1000\x00", "1000 :0", "uid=0"),
            )
        ),
    ],
)
def test_reserved_ids_are_found_in_every_spelling(user: str, problem: str, mapped: str) -> None:
    """Ids of the server and of replicas, 0, no user, and every text that is no plain number. Where
    the engine maps ids, 0 and the server's are others; those of replicas are not."""
    assert IDS.problem(user) == problem
    assert MAPPED.problem(user) == mapped


def settings(user: str = "", of_image: str | None = None) -> ServerSettings:
    """Return the settings of a server whose image names the user `of_image`."""
    return ServerSettings((), image=ServerImage("app", ID, "", of_image), user=user)


@pytest.mark.parametrize(
    ("server", "got"),
    [
        (settings(of_image=""), f"{ROOT}, as the image names no user"),
        (settings(of_image="app"), any_id("app")),
        (settings("0:0", "10001"), ROOT),
        (settings("1000:1000", "10001"), OWN),
        (settings("1000005:0", "10001"), OF_A_REPLICA.format(1_000_005)),
        (settings(), "a user that is not known, as the engine lacks the image"),
    ],
)
def test_a_reserved_id_needs_admin(server: ServerSettings, got: str) -> None:
    """The refusal names what was found, the scopes, and a user id that the scope deploy may use.
    With `server.user` the image's user does not count."""
    check_user(server, IDS, ADMIN)
    check_user(server, IDS, ("read", "admin"))

    for scopes in (DEPLOY, ("deploy",), ()):
        with pytest.raises(WrongScope) as refused:
            check_user(server, IDS, scopes)
        assert refused.value.message == (
            f"server.user: expected a user id that no other program here has, got {got}: as the"
            f" kernel counts limits per user id, this needs the scope admin, the key has"
            f' {", ".join(scopes)}; set user = "1002:1002" in [server]'
        )


@pytest.mark.parametrize(
    "server", [settings("10001:10001"), settings("10001:10001", ""), settings(of_image="10001")]
)
def test_any_other_id_is_free(server: ServerSettings) -> None:
    """An id of the image or of the settings that nothing else of this server has is allowed."""
    check_user(server, IDS, ("deploy",))


def test_the_user_of_a_server_is_its_settings_or_the_images() -> None:
    """None means that it is not known, "" that the image names none."""
    found = [user_of(one) for one in (settings("1:1", "2"), settings(of_image="2"), settings())]

    assert found == ["1:1", "2", None]
    assert user_of(settings(of_image="")) == ""


LISTED = NamedImages(("ghcr.io/acme/*", "nginx"))
NONE = NamedImages()


@pytest.mark.parametrize(
    ("reference", "source"),
    [
        ("ghcr.io/acme/app:2", Source("ghcr.io/acme/app:2")),
        ("nginx", Source("docker.io/library/nginx:latest")),
        (f"nginx:1@{ID}", Source(f"docker.io/library/nginx@{ID}")),
    ],
)
def test_a_listed_repository_may_be_pulled(reference: str, source: Source) -> None:
    """The engine gets the full name, so that it does not look for an id."""
    assert LISTED.source(reference, DEPLOY) == source


@pytest.mark.parametrize(
    "reference",
    ["postgres:17", "acme/app", "ghcr.io/acme", "ghcr.io.evil.example/acme/app", "evil/nginx"],
)
@pytest.mark.parametrize("named", [LISTED, NONE])
def test_any_other_repository_needs_admin(named: NamedImages, reference: str) -> None:
    """The refusal names what is listed, the repository and the remedy."""
    assert named.source(reference, ADMIN) == Source(reference)

    with pytest.raises(WrongScope) as refused:
        named.source(reference, DEPLOY)
    said = refused.value.message
    expected = "one of ghcr.io/acme/*, nginx (FN_IMAGES)"
    expected = expected if named is LISTED else "an image of fnctl image build"
    assert said.startswith(f"server.image: expected {expected}, got ")
    assert said.endswith(
        ": this needs the scope admin, the key has read, deploy; or list the repository in"
        " FN_IMAGES, a setting of the server"
    )


@pytest.mark.parametrize("reference", ["abcd", "0123456789ab", "a" * 64, ID, "sha256:abcd"])
def test_an_id_needs_admin_whatever_is_listed(reference: str) -> None:
    """By an id every image of the engine could be named; the name needs a tag or a registry."""
    every = NamedImages(("*",), {f"docker.io/library/{reference}:latest": ID})
    assert every.source(reference, ADMIN) == Source(reference)

    with pytest.raises(WrongScope, match="which may be the id of any image"):
        every.source(reference, DEPLOY)
    assert every.source("abcd:1", DEPLOY) == Source("docker.io/library/abcd:1")


@pytest.mark.parametrize("reference", ["fngate/pinned:a.b", "docker.io/fngate/pulled:a.b"])
def test_the_tags_of_servers_need_admin_whatever_is_listed(reference: str) -> None:
    """A pull of such a name from a registry would move the tag that keeps another image."""
    with pytest.raises(WrongScope, match="whose tags are this server's own"):
        NamedImages(("*",)).source(reference, DEPLOY)


def test_an_image_that_was_built_here_is_never_pulled() -> None:
    """A stranger may own its name in a registry; of a recorded one, only that id counts."""
    built = NamedImages((), {"docker.io/acme/rt:1": ID, "docker.io/library/fngate-runtime:cpu": ""})

    assert built.source("acme/rt:1", DEPLOY) == Source("docker.io/acme/rt:1", ID, may_pull=False)
    assert built.source("fngate-runtime:cpu", DEPLOY) == Source(
        "docker.io/library/fngate-runtime:cpu", "", may_pull=False
    )
    for other in ("acme/rt:2", "acme/rt", f"acme/rt@{ID}", "ghcr.io/acme/rt:1"):
        with pytest.raises(WrongScope):
            built.source(other, DEPLOY)


def test_no_deploy_moves_the_name_of_the_replicas_image() -> None:
    """Also where its repository is listed, it is taken as the engine has it; a listed image that
    was built here once may be any."""
    built = {"ghcr.io/acme/rt:cpu": "", "ghcr.io/acme/app:1": ID}
    named = NamedImages(("ghcr.io/acme/*",), built)

    assert named.source("ghcr.io/acme/rt:cpu", DEPLOY) == Source(
        "ghcr.io/acme/rt:cpu", may_pull=False
    )
    assert named.source("ghcr.io/acme/app:1", DEPLOY) == Source("ghcr.io/acme/app:1")
