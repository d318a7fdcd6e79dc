from __future__ import annotations

import pytest

from admin.cli.render import Receipt, read, render_receipt

COLD = (
    'cold;desc="digits@3 on cpu:0", replica;desc="7afa", queue;dur=180.000, start;dur=12.000, '
    "import;dur=118.4, load;dur=9, first_run;dur=1, decode;dur=0.100, "
    'batch;dur=0.000;desc="1 rows", first_run;dur=7'
)


def test_a_cold_start_is_told_by_its_phases() -> None:
    """The phases of the cold start stand apart from the times of the request."""
    receipt = read(COLD)

    assert (receipt.cold, receipt.replica) == ("digits@3 on cpu:0", "7afa")
    assert receipt.phases == {"start": 12.0, "import": 118.4, "load": 9.0, "first_run": 1.0}
    assert receipt.times == {"queue": 180.0, "decode": 0.1, "batch": 0.0}
    assert render_receipt(receipt) == (
        "cold start 140 ms: start 12 · import 118 · load 9 · first_run 1"
        " | queue 180 · decode 0.1 ms"
    )


def test_a_warm_answer_is_told_by_its_times() -> None:
    """Without a cold start there are only the request's own times, the first run among them."""
    receipt = read('replica;desc="r", queue;dur=0.1, decode;dur=0.12, first_run;dur=0.05')

    assert receipt.phases == {}
    assert render_receipt(receipt) == "warm: queue 0.1 · decode 0.12 · first_run 0.05 ms"


@pytest.mark.parametrize(
    "header", ["", "no", "queue;dur=x", "queue;dur=-1", "queue;dur=inf", ";;,,="]
)
def test_what_cannot_be_read_is_left_out(header: str) -> None:
    """A broken header gives an empty receipt and no line."""
    assert read(header) == Receipt()
    assert render_receipt(read(header)) == ""


def test_a_cold_start_without_times_is_told_too() -> None:
    """Only what is known is shown."""
    assert render_receipt(read("cold, load;dur=9")) == "cold start 9 ms: load 9"


def test_quotes_in_a_description_are_undone() -> None:
    """A quoted description may hold quotes and commas."""
    assert read(r'replica;desc="a\"b, c"').replica == 'a"b, c'


def test_the_receipt_as_json_says_whether_it_was_cold() -> None:
    """JSON has the sum of the phases after a cold start, null after a warm answer."""
    assert read(COLD).to_json()["cold_start_ms"] == pytest.approx(140.4)
    assert read("queue;dur=1").to_json() == {
        "cold": False,
        "started": "",
        "replica": "",
        "cold_start_ms": None,
        "phases_ms": {},
        "times_ms": {"queue": 1.0},
    }
