"""What `install-help` writes, read by what it is for: man and mandoc, bash, zsh and fish."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.deploy.operator.cache import run, system_tool

BIN: Final = Path(sys.executable).parent
FUNCTION: Final = "_kafka_quota_proxy_completion"
#: What is typed, and the word that the shell makes of its end.
TYPED: Final = (
    ("check-", "check-config"),
    ("run --drain", "--drain-timeout"),
    ("run --throttle-mode no", "notify"),
    ("run --throttle-mode x", ""),
    ("schema q", "quotas"),
)
#: Click's own scripts for zsh and fish lose the flag, or cut the description.
AFTER_EQUALS: Final = ("run --throttle-mode=no", "--throttle-mode=notify")
A_FILE: Final = ("run --quotas-file quot", "quotas.toml")
pytestmark = pytest.mark.deploy


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a user who installed the help, with a quotas file in it."""
    folder = tmp_path_factory.mktemp("home")
    run(BIN / "kafka-quota-proxy", "install-help", "--prefix", folder / ".local")
    (folder / "quotas.toml").touch()
    return folder


def in_shell(home: Path, *command: str) -> str:
    """What a shell prints, with nothing from this user's environment."""
    done = subprocess.run(
        command, cwd=home, env={"HOME": str(home), "PATH": f"{BIN}:/usr/bin:/bin", "TERM": "xterm"},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done
    return done.stdout


def test_the_page_has_no_findings_and_a_bad_one_has(home: Path) -> None:
    page = home / ".local/share/man/man1/kafka-quota-proxy.1"
    findings = run(system_tool("mandoc"), "-Tlint", "-W", "warning", page, code=2).splitlines()
    assert [each for each in findings if "missing date" not in each] == [], "which the page has not, on purpose"
    bad = home / "bad.1"
    bad.write_text(page.read_text().replace("\n.nf\n", "\n.nff\n", 1))
    assert "unknown macro" in run(system_tool("mandoc"), "-Tlint", "-W", "warning", bad, code=3)
    assert "--throttle-mode" in run(system_tool("man"), "-l", page)


@pytest.mark.parametrize(("typed", "found"), TYPED)
def test_bash(home: Path, typed: str, found: str) -> None:
    script = home / ".local/share/bash-completion/completions/kafka-quota-proxy"
    asked = (
        f". {script}; complete -p kafka-quota-proxy; COMP_WORDS=(kafka-quota-proxy {typed}); "
        f'COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); {FUNCTION} kafka-quota-proxy; echo "${{COMPREPLY[@]}}"'
    )
    how, _, replies = in_shell(home, "bash", "--norc", "-c", asked).partition("\n")
    assert f"-F {FUNCTION}" in how
    assert replies.strip() == found


@pytest.mark.parametrize(("typed", "found"), [*TYPED, AFTER_EQUALS, A_FILE])
def test_zsh(home: Path, typed: str, found: str) -> None:
    """The line after Tab, in an interactive zsh on a terminal of its own."""
    line = home / "line"
    line.unlink(missing_ok=True)
    setup = (
        f"PS1=; fpath=({home}/.local/share/zsh/site-functions $fpath); autoload -Uz compinit; compinit -u -D; "
        f'tab() {{ zle complete-word; print -r -- "$BUFFER" >{line}; exit }}; zle -N tab; bindkey "^T" tab'
    )
    script = (
        'zmodload zsh/zpty; zpty shell zsh -f -i; zpty -w shell "$1"; zpty -w -n shell "$2"; '
        "while zpty -r shell; do :; done"
    )
    in_shell(home, *(system_tool("zsh"), "-f", "-c", script, "zsh", setup, f"kafka-quota-proxy {typed}\x14"))
    before, _, last = f"kafka-quota-proxy {typed}".rpartition(" ")
    assert line.read_text().rstrip() == f"{before} {found or last}"


@pytest.mark.parametrize(("typed", "found"), [*TYPED, A_FILE])
def test_fish(home: Path, typed: str, found: str) -> None:
    asked = in_shell(home, system_tool("fish"), "-c", f"complete -C'kafka-quota-proxy {typed}'")
    assert asked.strip().partition("\t")[0] == found


def test_fish_shows_whole_descriptions(home: Path) -> None:
    asked = in_shell(home, system_tool("fish"), "-c", "complete -C'kafka-quota-proxy run --dry'")
    assert "Decide, count and log, but forward" in asked
