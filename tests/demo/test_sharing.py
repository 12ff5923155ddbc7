"""The demo of fleets: what it measures and draws; run as a person does, in the nightly."""

import subprocess
import sys
from pathlib import Path

import pytest

from demo.sharing import BUSY, IDLE, LIMIT, MEMBERS, Run, demand, draw, wanted_of
from deploy.local.artifacts import PROJECT


def test_demand_moves_and_is_above_the_limit_most_of_the_time() -> None:
    wanted = wanted_of(40)
    assert {demand(member, 0) for member in range(MEMBERS)} == {BUSY, IDLE}
    assert min(wanted) < LIMIT < max(wanted)
    assert sum(each > LIMIT for each in wanted) > 25


def test_a_run_is_measured_against_what_was_wanted_up_to_the_limit() -> None:
    half = Run("half", [[LIMIT // 2] * 40] + [[0] * 40] * (MEMBERS - 1))
    assert half.served() == pytest.approx(0.5, abs=0.05)
    assert (half.most(1), half.most(10)) == (LIMIT / 2, LIMIT / 2)


def test_the_picture_is_small(tmp_path: Path) -> None:
    run = Run("a run", [[LIMIT // MEMBERS] * 40] * MEMBERS)
    draw([run, run], tmp_path / "fleet.png")
    assert (tmp_path / "fleet.png").read_bytes().startswith(b"\x89PNG")
    assert (PROJECT / "docs/fleet.png").stat().st_size < 150_000


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_a_fleet_serves_more_than_fixed_shares(tmp_path: Path) -> None:
    command = (sys.executable, "-u", "-m", "demo.sharing", "--seconds", "30", "--output", str(tmp_path))
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=380, check=False)
    rows = [line for line in done.stdout.splitlines() if "%" in line]
    fleet, fixed = (int(row.split("%")[0].split()[-1]) for row in rows)
    assert fleet > fixed, done.stdout
    assert (tmp_path / "fleet.png").exists()
