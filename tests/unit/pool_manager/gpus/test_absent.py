"""A host without GPUs."""

from __future__ import annotations

from pool_manager.gpus.absent import NoGpus


async def test_there_is_nothing() -> None:
    """`NoGpus` has no devices and does nothing."""
    gpus = NoGpus()
    gpus.start(print)

    assert (gpus.devices(), gpus.silence) == ([], "")
    assert (gpus.view("cpu:0"), gpus.used_mib("cpu:0")) == (None, None)
    assert await gpus.held_mib("cpu:0", frozenset({1})) is None
    assert await gpus.taken_mib("cpu:0", frozenset({1}), 1.0, is_alone=True) is None
    await gpus.prove_free("cpu:0", None, lambda: 0.0)
    await gpus.close()


def test_it_may_be_known_why() -> None:
    """`silence` distinguishes an unusable driver from a missing one."""
    assert NoGpus("it hangs").silence == "it hangs"
