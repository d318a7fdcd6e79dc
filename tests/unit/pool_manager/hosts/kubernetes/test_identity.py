"""Whose a projected token is."""

from __future__ import annotations

import pytest

from hosts.kubernetes.objects import TokenReviewStatus, UserInfo
from pool_manager.hosts.kubernetes.identity import (
    AUDIENCE,
    POD_NAME,
    POD_UID,
    TOKEN_MAX,
    Named,
    is_token,
    named_by,
)

USER = "system:serviceaccount:fngate:fngate-replica"
EXTRA = {POD_NAME: ("fn-1",), POD_UID: ("u1",)}


def review(
    *,
    authenticated: bool = True,
    audiences: tuple[str, ...] = (AUDIENCE,),
    user: str = USER,
    extra: dict[str, tuple[str, ...]] | None = None,
    error: str = "",
) -> TokenReviewStatus:
    """Return the answer about a token."""
    info = UserInfo(username=user, extra=EXTRA if extra is None else extra)
    return TokenReviewStatus(
        authenticated=authenticated, user=info, audiences=audiences, error=error
    )


def test_a_token_names_its_pod() -> None:
    """A valid token of our audience and account is bound to a Pod by name and uid."""
    assert named_by(review(), USER) == Named("fn-1", "u1")


@pytest.mark.parametrize(
    "status",
    [
        pytest.param(review(authenticated=False), id="not valid"),
        pytest.param(review(error="expired"), id="error"),
        pytest.param(review(audiences=()), id="an API server that knows no audiences"),
        pytest.param(review(audiences=("vault",)), id="another audience"),
        pytest.param(review(user="system:serviceaccount:fngate:default"), id="another account"),
        pytest.param(review(user="system:serviceaccount:evil:fngate-replica"), id="namespace"),
        pytest.param(review(extra={}), id="bound to no Pod"),
        pytest.param(review(extra={POD_NAME: ("fn-1",)}), id="no uid"),
        pytest.param(review(extra={**EXTRA, POD_UID: ("u1", "u2")}), id="two uids"),
        pytest.param(review(extra={**EXTRA, POD_UID: ("",)}), id="an empty uid"),
    ],
)
def test_any_other_token_is_nobodys(status: TokenReviewStatus) -> None:
    """What lacks one of these names no Pod."""
    assert named_by(status, USER) is None


@pytest.mark.parametrize(
    ("credential", "expected"),
    [
        ("eyJh.eyJp_c3M.sig-_", True),
        ("", False),
        ("..", False),
        ("a.b", False),
        ("a.b.c.d", False),
        ("a.b.c\r\nX: 1", False),
        ("a.ö.c", False),
        ("a." + "b" * TOKEN_MAX + ".c", False),
    ],
)
def test_only_tokens_are_shown(credential: str, expected: bool) -> None:
    """Nothing else reaches the API server."""
    assert is_token(credential) is expected
