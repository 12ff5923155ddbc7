"""What happens ten times a second, and is no part of a connection; what the start has switched off is on again then."""

import gc

import pytest

from proxy.process.ticks import settle_garbage_collection
from tests.proxy.conversation import OpenStage, lines_of


@pytest.mark.parametrize(("late", "mean_ms"), [([0.067] * 100, 67), ([0.0] * 99 + [3.2], 32), ([0.01] * 100, None)])
async def test_a_late_loop_is_reported_once_a_minute(
    open_stage: OpenStage, caplog: pytest.LogCaptureFixture, late: list[float], mean_ms: int | None
) -> None:
    """At a tenth of a processor the ticks of ten seconds were 67 ms late on average."""
    stage = open_stage()
    caplog.clear()
    stage.server._ticks._late_seconds = stage.metrics.loop_lag.sum_seconds
    for _ in range(7):
        for each in late:
            stage.metrics.loop_lag.observe(each)
        stage.server._ticks._warn_of_late_loop(stage.clock())
        stage.clock.pass_seconds(10)
    found = [fields["mean_ms"] for name, fields in lines_of(caplog.records) if name == "loop_late"]
    assert found == ([] if mean_ms is None else [mean_ms, mean_ms])


def test_garbage_is_collected_after_the_start() -> None:
    thresholds = gc.get_threshold()
    gc.disable()
    try:
        settle_garbage_collection()
        assert gc.isenabled()
    finally:
        gc.enable()
        gc.set_threshold(*thresholds)
        gc.unfreeze()
