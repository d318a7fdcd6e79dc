"""The last lines of logs."""

from __future__ import annotations

from pathlib import Path

from admin.deploy.rollout import last_lines, log_tail
from tests.support.operator import operating


def test_only_the_last_lines_count() -> None:
    """Bytes that are no UTF-8 do not hide the rest."""
    assert last_lines(b"a\nb\nc\xff\n", 2) == ["b", "c\ufffd"]
    assert last_lines(b"", 2) == []


async def test_the_newest_replica_is_asked(tmp_path: Path) -> None:
    """A function that never ran has no lines."""
    async with operating(tmp_path) as operator:
        await operator.deploy("digits")
        await operator.manager.warm("default/digits@1")

        assert "starts for default/digits@1" in (await log_tail(operator.manager, "digits"))[0]
        assert await log_tail(operator.manager, "nobody") == []
