"""Ends of containers in words."""

from __future__ import annotations

import pytest

from pool_manager.drivers.container_exits import describe_exit, describe_server_exit


@pytest.mark.parametrize(
    ("code", "out_of_memory", "said"),
    [
        (None, False, "exited"),
        (0, False, "exited with code 0"),
        (3, True, "exited with code 3"),
        (137, False, "was killed by SIGKILL"),
        (137, True, "ran out of memory and was killed by SIGKILL"),
        (143, True, "was killed by SIGTERM"),
        (139, False, "was killed by SIGSEGV"),
        (255, False, "exited with code 255"),
    ],
)
def test_an_end_in_words(code: int | None, out_of_memory: bool, said: str) -> None:
    """Lack of memory explains only a KILL: the kernel may have killed another process."""
    assert describe_exit(code, out_of_memory=out_of_memory) == said


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (0, "exited with code 0 by itself (it must stay in the foreground)"),
        (1, "exited with code 1"),
        (126, "exited with code 126: a program cannot be executed"),
        (127, "exited with code 127: a program was not found"),
    ],
)
def test_a_servers_end_in_words(code: int, said: str) -> None:
    """The codes that the engine's init and shells use are explained."""
    how = describe_server_exit(code, out_of_memory=False)

    assert how == f"lost its server, which {said}"
