"""Sets of jars: complete, exactly as pinned, or an error that says what to do. Ivy is played by a script here."""

import hashlib
import json
import sys
from pathlib import Path

import pytest

from deploy.local.artifacts import ALL_SETS, CHECKSUMS, ArtifactSet, ensure, read_pins
from deploy.local.errors import DownloadFailed

GOOD = {"broker-1.0.jar": b"the broker", "clients-1.0.jar": b"the clients"}
SET = ArtifactSet("thing-1.0", ("org.example:thing:1.0",), True)

# Retrieves, at its nth run, the jars of the nth entry of the plan; the last entry is used again and again.
FAKE_IVY = """
import json, pathlib, sys
here = pathlib.Path(__file__).parent
runs = here / "runs"
number = int(runs.read_text()) if runs.exists() else 0
runs.write_text(str(number + 1))
plan = json.loads((here / "plan.json").read_text())
step = plan[min(number, len(plan) - 1)]
target = pathlib.Path(sys.argv[sys.argv.index("-retrieve") + 1]).parent
for name, content in step["jars"].items():
    (target / name).write_text(content)
print(step.get("says", ""))
sys.exit(step.get("exit", 0))
"""


class Playground:
    """A cache, a checksum file for GOOD, and a fake Ivy that follows a plan."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.cache = directory / "cache"
        self.jars = self.cache / "jars" / SET.name
        self.lines: list[str] = []
        pins = "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in GOOD.items())
        (directory / f"{SET.name}.txt").write_text(pins)
        (directory / "ivy.py").write_text(FAKE_IVY)
        self.plan({"jars": {name: content.decode() for name, content in GOOD.items()}})

    def plan(self, *steps: dict[str, object]) -> None:
        (self.directory / "plan.json").write_text(json.dumps(steps))

    @property
    def runs(self) -> int:
        runs = self.directory / "runs"
        return int(runs.read_text()) if runs.exists() else 0

    def ensure(self) -> list[Path]:
        return ensure(
            SET,
            cache=self.cache,
            checksums=self.directory,
            ivy_command=[sys.executable, str(self.directory / "ivy.py")],
            retry_pauses_seconds=(0.0, 0.0),
            report=self.lines.append,
        )


@pytest.fixture
def playground(tmp_path: Path) -> Playground:
    return Playground(tmp_path)


def test_tries_again_until_all_jars_are_as_pinned(playground: Playground) -> None:
    good = {name: content.decode() for name, content in GOOD.items()}
    playground.plan(
        {"jars": {"broker-1.0.jar": "the broker"}, "exit": 1}, {"jars": good | {"clients-1.0.jar": "?"}}, {"jars": good}
    )
    assert [jar.name for jar in playground.ensure()] == sorted(GOOD)
    assert playground.runs == 3
    assert any("clients-1.0.jar is missing; attempt 2 of 3" in line for line in playground.lines)
    assert any("clients-1.0.jar is damaged; attempt 3 of 3" in line for line in playground.lines)


def test_gives_up_in_one_line_with_the_reason_and_the_next_step(playground: Playground) -> None:
    playground.plan({"jars": {}, "says": "Server access error: java.net.UnknownHostException: nowhere", "exit": 1})
    with pytest.raises(DownloadFailed) as caught:
        playground.ensure()
    text = str(caught.value)
    assert "\n" not in text
    assert "cannot fetch thing-1.0: broker-1.0.jar is missing and 1 more are not right after 3 attempts" in text
    assert "UnknownHostException: nowhere" in text
    assert "check the network" in text
    assert not playground.jars.exists()  # never a half-filled directory


@pytest.mark.parametrize("name", ALL_SETS)
def test_every_set_is_pinned_by_full_digests(name: str) -> None:
    pins = read_pins(CHECKSUMS / f"{name}.txt")
    assert pins
    assert all(len(bytes.fromhex(digest)) == 32 for digest in pins.values())
    assert all(file.endswith(".jar") for file in pins)
