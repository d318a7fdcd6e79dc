"""Which sessions are worth it."""

from __future__ import annotations

from runtime_image.contract.model import SessionPlan
from runtime_image.verification.measure import Candidate, choose

AS_IT_IS = SessionPlan("model.onnx")
MAPPED = SessionPlan("p.onnx", optimise=False, prepack=False)
PACKED = SessionPlan("p.onnx", optimise=False)


def candidate(plan: SessionPlan, start_ms: float, *cpu_ms: float) -> Candidate:
    return Candidate(plan, start_ms, 0.0, dict(zip((1, 32), cpu_ms, strict=False)))


def chosen(
    *candidates: Candidate, room: bool = True
) -> tuple[SessionPlan, SessionPlan | None] | str:
    found = choose(candidates[0], candidates[1:], has_room_for_two=room)
    if isinstance(found, str):
        return found
    return found.quick.plan, found.fast.plan if found.fast else None


def test_the_first_answer_decides_about_the_quick_one() -> None:
    """Load and first run together: a session that loads at once and then pages in for long is
    not quick."""
    mapped = Candidate(MAPPED, 1.0, 60.0, {1: 5.0})
    packed = Candidate(PACKED, 30.0, 5.0, {1: 5.0})

    assert chosen(candidate(AS_IT_IS, 200.0, 5.0), mapped, packed) == (PACKED, None)


def test_what_computes_with_less_takes_over() -> None:
    """A session that saves a twentieth is built beside the quick one."""
    original = candidate(AS_IT_IS, 200.0, 10.0)
    mapped, packed = candidate(MAPPED, 5.0, 10.0), candidate(PACKED, 50.0, 9.4)

    assert chosen(original, mapped, packed) == (MAPPED, PACKED)


def test_what_saves_hardly_anything_is_not_built() -> None:
    """Less than a twentieth is not worth the time and the memory of a second session."""
    original = candidate(AS_IT_IS, 200.0, 10.0)
    mapped, packed = candidate(MAPPED, 5.0, 10.0), candidate(PACKED, 50.0, 9.6)

    assert chosen(original, mapped, packed) == (MAPPED, None)


def test_large_and_small_runs_count_alike() -> None:
    """What is gained for one row may be lost for a batch."""
    original = candidate(AS_IT_IS, 200.0, 10.0, 100.0)
    mapped = candidate(MAPPED, 5.0, 10.0, 100.0)

    assert chosen(original, mapped, candidate(PACKED, 50.0, 8.0, 120.0)) == (MAPPED, None)
    assert chosen(original, mapped, candidate(PACKED, 50.0, 10.0, 60.0)) == (MAPPED, PACKED)


def test_of_equals_the_one_that_loads_sooner_takes_over() -> None:
    """The model as it is computes as fast as the packed one, but loads later."""
    original = candidate(AS_IT_IS, 200.0, 7.9)
    mapped, packed = candidate(MAPPED, 5.0, 10.0), candidate(PACKED, 50.0, 8.0)

    assert chosen(original, mapped, packed) == (MAPPED, PACKED)


def test_the_model_as_it_is_may_be_the_fast_one() -> None:
    """Where optimising ahead lost something, the original takes over."""
    original = candidate(AS_IT_IS, 200.0, 5.0)
    mapped, packed = candidate(MAPPED, 5.0, 10.0), candidate(PACKED, 50.0, 9.0)

    assert chosen(original, mapped, packed) == (MAPPED, AS_IT_IS)


def test_two_sessions_need_room() -> None:
    """Where the function's memory does not hold both there is only the quick one."""
    original = candidate(AS_IT_IS, 200.0, 5.0)

    assert chosen(original, candidate(MAPPED, 5.0, 10.0), room=False) == (MAPPED, None)


def test_what_saves_no_time_is_not_prepared() -> None:
    """A millisecond and a tenth of the time are the least that files must save."""
    small = candidate(AS_IT_IS, 1.5, 0.1)
    large = candidate(AS_IT_IS, 200.0, 0.1)

    why = "it answers after 1.5 ms as it is, prepared after 0.6 ms"
    assert chosen(small, candidate(MAPPED, 0.6, 0.1)) == why
    assert isinstance(chosen(large, candidate(MAPPED, 185.0, 0.1)), str)
    assert chosen(large, candidate(MAPPED, 175.0, 0.1)) == (MAPPED, None)


def test_a_clock_that_saw_nothing_divides_by_nothing() -> None:
    """Runs too short for the clock are equal."""
    original = candidate(AS_IT_IS, 200.0, 0.0)

    assert chosen(original, candidate(MAPPED, 5.0, 0.0), candidate(PACKED, 6.0, 0.0)) in (
        (MAPPED, None),
        (MAPPED, PACKED),
    )
