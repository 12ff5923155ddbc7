"""The command line: each option is explained, and what is wrong is one line, before Spark starts."""

import argparse
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import date
from types import SimpleNamespace

import pytest

from pipeline.failures import reason
from pipeline.usage import cli
from pipeline.usage.cli import main, parser
from pipeline.usage.jobs import report, runs


def commands(top: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield command
                yield from commands(command)


def test_each_command_and_option_has_help() -> None:
    missing = [
        f"{command.prog}: {action.dest}"
        for command in commands(parser())
        for action in command._actions
        if not action.help and not isinstance(action, argparse._SubParsersAction)
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["report"], "the following arguments are required: --warehouse"),
        (["report", "--warehouse", "w", "--from", "soon"], "argument --from: 'soon' is not a day such as 2026-01-31"),
        (["ingest", "--warehouse", "w", "--bootstrap-servers", "b:1", "--option", "x"], "'x' is not KEY=VALUE"),
        (["ingest", "--warehouse", "w", "--bootstrap-servers", "b:1", "--every", "0"], "'0' is not a number above 0"),
        (["simulate", "--warehouse", "w", "q", "--rows", "0"], "argument --rows: '0' is not a whole number above 0"),
        (["--memory", "1x", "maintain"], "argument --memory: '1x' is not a heap such as 512m or 2g"),
        (["nothing"], "invalid choice: 'nothing'"),
    ],
)
def test_a_wrong_option_is_named(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_missing_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--warehouse", "w", "--prices", "/nothing.toml"]) == 2
    assert capsys.readouterr().err == "error: [Errno 2] No such file or directory: '/nothing.toml'\n"


@pytest.mark.parametrize(
    ("missing", "over", "code"),
    [([], [], 0), (["a run ended"], [], 3), ([], ["team a"], 4), (["a run ended"], ["team a"], 3)],
)
def test_the_exit_code_says_what_is_missing_before_what_is_over_budget(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], missing: list[str], over: list[str], code: int
) -> None:
    warehouse = SimpleNamespace(exists=lambda name: True)
    for where, name, given in (
        (cli, "session", lambda **_: nullcontext()),
        (cli, "Warehouse", lambda spark, root: warehouse),
        (report, "report", lambda *_, **__: [date(2026, 1, 5)]),
        (report, "warnings", lambda *_: missing),
        (report, "over_budget", lambda *_: over),
        (runs, "outdated", lambda *_: None),
    ):
        monkeypatch.setattr(where, name, given)
    assert main(["report", "--warehouse", "w"]) == code
    assert capsys.readouterr().err == "".join(f"warning: {line}\n" for line in missing + over)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "An error occurred while calling o1.save.\n: org.apache.kafka.common.KafkaException: Failed to construct\n"
            "\tat org.apache.kafka.clients.Some.method(Some.java:1)\n"
            "Caused by: org.apache.kafka.common.config.ConfigException: Invalid value x",
            "org.apache.kafka.common.config.ConfigException: Invalid value x",
        ),
        ("[STREAM_FAILED] Query [id = a, runId = b] terminated with exception: no space left", "no space left"),
        (
            "[STREAM_FAILED] Query [id = a, runId = b] terminated with exception: Traceback (most recent call last):\n"
            "Caused by: java.lang.RuntimeException: a task failed\n\t\tat a.B.c(B.java:1)\n"
            "Caused by: java.lang.ArithmeticException: long overflow\n\tat java.base/java.lang.Math.multiplyExact",
            "java.lang.ArithmeticException: long overflow",
        ),
        ("\n[PATH_NOT_FOUND] Path does not exist: /in.\nat x", "[PATH_NOT_FOUND] Path does not exist: /in."),
        ("", "Exception"),
    ],
)
def test_the_reason_is_one_line(text: str, found: str) -> None:
    assert reason(Exception(text)) == found
