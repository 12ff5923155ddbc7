"""The command line of the sink: what is wrong is one line, before Spark starts."""

import pytest

from pipeline.sink.command import main, parser
from pipeline.sink.follow import Waited, describe
from pipeline.sink.sizing import Sizing
from pipeline.sink.stream import Job

REQUIRED = ["--input", "in", "--bootstrap-servers", "b:1", "--topic", "t", "--checkpoint", "c", "--rate", "5MB"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--rate", "5 parsecs"], "argument --rate: '5 parsecs': expected bytes per second above 0"),
        (["--option", "acks"], "argument --option: 'acks' is not KEY=VALUE"),
        (["--batch-seconds", "0"], "argument --batch-seconds: '0' is not a number above 0"),
        (["--executors", "-1"], "argument --executors: '-1' is not a whole number above 0"),
        (["--every", "nan"], "argument --every: 'nan' is not a number above 0"),
    ],
)
def test_a_wrong_option_is_named(more: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*REQUIRED, *more])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_help_has_each_option_explained_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "spark-submit" in capsys.readouterr().out
    assert all(action.help for action in parser()._actions)


def test_own_options_replace_the_computed_ones() -> None:
    job = Job("in", "b:1", "t", "etl", "c", Sizing(5e6), sink_options={"kafka.linger.ms": "5"})
    assert (job.kafka_options["kafka.linger.ms"], job.kafka_options["kafka.acks"]) == ("5", "all")
    assert job.kafka_options["kafka.client.id"] == "etl"


def test_a_micro_batch_in_one_line() -> None:
    progress = {"batchId": 3, "durationMs": {"triggerExecution": 10_000}}
    assert describe(progress, 150_000, 45_000_000, Sizing(5e6), Waited(17.25, 0.126)) == (
        "micro-batch 3: 150,000 records, 45.0 MB in 10.0 s, 4.50 MB/s (90% of the rate); tasks blocked 17.2 s by the "
        "full buffer, longest throttle time 0.13 s"
    )
    assert describe(progress, 0, 0, Sizing(5e6), None).endswith("0.00 MB/s (0% of the rate)")
