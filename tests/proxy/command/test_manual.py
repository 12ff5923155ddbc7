"""The man page and the completions: each option is there. What reads them: `tests/deploy/operator/test_help.py`."""

from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from proxy.command.commands import main
from proxy.command.manual import files


def test_the_page_has_each_command_option_and_limit() -> None:
    page = files(main, "kafka-quota-proxy", "9.9.9")["man/man1/kafka-quota-proxy.1"]
    lines = page.splitlines()
    assert {f".SH {name.upper()}" for name in main.commands} < set(lines)
    for command in main.commands.values():
        shown = [param for param in command.params if not getattr(param, "hidden", False)]
        for flag in (flag for param in shown for flag in param.opts if flag.startswith("--")):
            assert flag.replace("-", "\\-") in page
    assert any(line.strip().startswith("producer_byte_rate=") for line in lines)
    assert ".SS Quotas" in lines
    assert not set(page) & set("\b\f\t"), "click's own marks"
    macros = {line.split()[0] for line in lines if line.startswith((".", "'"))}
    assert macros == {".TH", ".SH", ".SS", ".nf", ".fi"}


@pytest.mark.parametrize(
    ("words", "incomplete", "found"),
    [
        ([], "sch", ["schema"]),
        (["run"], "--ssl-key", ["--ssl-key-location"]),
        (["run", "--throttle-mode"], "", ["auto", "notify", "delay", "pause"]),
        (["run", "--throttle-mode"], "de", ["delay"]),
        (["run", "--broker-ports"], "", []),
        (["run", "--quotas-file"], "quo", ["file:quo"]),
        (["schema"], "c", ["config"]),
    ],
)
def test_commands_options_and_values_are_completed(words: list[str], incomplete: str, found: list[str]) -> None:
    items = ShellComplete(main, {}, "kafka-quota-proxy", "").get_completions(words, incomplete)
    assert [each.value if each.type == "plain" else f"{each.type}:{each.value}" for each in items] == found


def test_the_files_are_listed_and_a_folder_that_is_none_is_an_error(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["install-help", "--prefix", str(tmp_path / "new")])
    paths = done.output.splitlines()
    assert [each.removeprefix(f"{tmp_path}/new/share/") for each in paths] == [
        "man/man1/kafka-quota-proxy.1",
        "bash-completion/completions/kafka-quota-proxy",
        "zsh/site-functions/_kafka-quota-proxy",
        "fish/vendor_completions.d/kafka-quota-proxy.fish",
    ]
    variable = "_KAFKA_QUOTA_PROXY_COMPLETE="
    assert all(variable in (tmp_path / each).read_text() for each in paths[1:])
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(main, ["install-help", "--prefix", str(tmp_path / "file")])
    assert done.exit_code == 1
    assert done.output == f"Error: [Errno 20] Not a directory: '{tmp_path}/file/share/man/man1'\n"
