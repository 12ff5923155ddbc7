"""The demo of fleets: what it measures and draws; run as a person does, in the nightly."""

import subprocess
import sys
from pathlib import Path

import pytest

from deploy.local.artifacts import PROJECT


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_a_fleet_serves_more_than_fixed_shares(tmp_path: Path) -> None:
    command = (sys.executable, "-u", "-m", "demo.sharing", "--seconds", "30", "--output", str(tmp_path))
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=380, check=False)
    rows = [line for line in done.stdout.splitlines() if "%" in line]
    fleet, fixed = (int(row.split("%")[0].split()[-1]) for row in rows)
    assert fleet > fixed, done.stdout
    assert (tmp_path / "fleet.png").exists()
