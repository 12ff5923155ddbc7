"""What happens ten times a second, and is no part of a connection."""

import pytest

from tests.proxy.conversation import OpenStage, lines_of


@pytest.mark.parametrize(
    ("late", "says"),
    [
        ([0.067] * 100, (67, 67, 17)),
        ([0.0] * 99 + [1.2], (12, 1200, 11)),
        ([0.01] * 100, None),
        ([0.0] * 99 + [0.9], None),
    ],
)
async def test_a_late_loop_is_reported_once_a_minute(
    open_stage: OpenStage, caplog: pytest.LogCaptureFixture, late: list[float], says: tuple[int, ...] | None
) -> None:
    """At a tenth of a processor the ticks of ten seconds were 67 ms late on average."""
    stage = open_stage()
    caplog.clear()
    for _ in range(7):
        stage.server._ticks._late_seconds = list(late)
        stage.server._ticks._warn_of_late_loop(stage.clock())
        stage.clock.pass_seconds(10)
    found = [
        (fields["mean_ms"], fields["max_ms"], fields["of_seconds"])
        for name, fields in lines_of(caplog.records)
        if name == "loop_late"
    ]
    assert found == ([] if says is None else [says, says])
