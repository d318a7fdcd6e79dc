from __future__ import annotations

from admin.cli.doctor.machine import Check, render, softened, to_json


def test_checks_are_lines_with_what_to_do() -> None:
    """Each check is a line; below it stands what to do, if there is anything."""
    shown = render([Check("ok", "a", "fine"), Check("fail", "long", "bad", "mend it")])

    assert shown == "ok    a     fine\nfail  long  bad\n            -> mend it"
    assert to_json([Check("ok", "a", "fine")]) == [
        {"level": "ok", "name": "a", "found": "fine", "todo": ""}
    ]


def test_what_nothing_depends_on_only_warns() -> None:
    """A failure of what is not used stays visible, with what to do, and fails nothing."""
    checks = [Check("ok", "a", "fine"), Check("fail", "b", "bad", "mend it")]

    assert softened(checks) == [checks[0], Check("warn", "b", "bad", "mend it")]
