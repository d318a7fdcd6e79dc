from __future__ import annotations

import pytest

from admin.client.ssh import Target, parse_target


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("gpu1", Target("gpu1")),
        ("nn@gpu1", Target("gpu1", "nn")),
        ("nn@gpu1.example.org:2222", Target("gpu1.example.org", "nn", 2222)),
        ("10.0.0.5:22", Target("10.0.0.5", None, 22)),
        ("fe80::1%eth0", Target("fe80::1%eth0")),
        ("nn@[::1]:22", Target("::1", "nn", 22)),
        ("[::1]", Target("::1")),
    ],
)
def test_a_target_is_read(text: str, target: Target) -> None:
    """User and port may be left out; an IPv6 address with a port stands in brackets."""
    assert parse_target(text) == target
    assert parse_target(str(target)) == target


@pytest.mark.parametrize(
    "text",
    [
        *("", "@", "nn@", "@gpu1", "-oProxyCommand=x", "a@-x", "a b", "gpu1:", "gpu1:0"),
        *("gpu1:65536", "gpu1:x", "[::1]x", "[::1", "gpu1\n", "a;b", "nn@gpu1:22:"),
    ],
)
def test_what_is_no_target_is_refused(text: str) -> None:
    """Nothing that a program could take for an option, or that has no host, is taken."""
    with pytest.raises(ValueError, match="expected"):
        parse_target(text)


def test_the_command_by_hand_names_what_was_given() -> None:
    """What is shown for trying by hand logs in to the same place."""
    assert Target("gpu1").command() == "ssh gpu1"
    assert Target("::1", "nn", 2222).command("ssh-copy-id") == "ssh-copy-id -p 2222 nn@::1"
