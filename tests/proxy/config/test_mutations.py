"""Random slips in a valid quotas file: errors, or exactly the limits that it has. No traceback."""

import re
import tomllib
from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.command.commands import main
from proxy.config.errors import ConfigError
from proxy.config.quotas_file import active_quotas
from tests.proxy.command_line import UPSTREAM, config

QUOTAS = """\
quota_share = 1
[[quota]]
client-id = "etl"
producer_byte_rate = "5MB"
consumer_byte_rate = 2_500_000
[[quota]]
user = "alice"
request_rate = 1.5
"""
OPTIONS = 'bootstrap_servers = "b:9092"\ndry_run = true\nmax_connections = 50\nsocket_request_max_bytes = "100MB"\n'
UNITS = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
CHARACTERS = st.sampled_from("\"'=[]#.,\n -_059kMGBbit/:;a\u00fc\u201c\u2013\0\ufeff\r")
SLIP = st.tuples(st.integers(0, 200), st.integers(0, 3), st.text(CHARACTERS, max_size=3))


def with_slip(text: str, slip: tuple[int, int, str]) -> str:
    at, length, put = slip
    at %= len(text)
    return text[:at] + put + text[at + length :]


def written(value: object) -> Fraction:
    """The rate that a reader takes it for."""
    found = re.fullmatch(r"\s*\+?([0-9._eE+-]+)\s*([kMG]?B?)(?:ps)?\s*(?:/\s*s\w*)?\s*", str(value))
    assert found is not None, f"{value!r} should have been refused"
    return Fraction(found[1].replace("_", "")) * UNITS[found[2]]


@pytest.mark.parametrize(("flag", "text"), [("--quotas-file", QUOTAS), ("--config", OPTIONS)])
@given(slip=SLIP)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
def test_no_slip_ends_in_a_traceback(tmp_path: Path, flag: str, text: str, slip: tuple[int, int, str]) -> None:
    file = tmp_path / "file.toml"
    file.write_bytes(with_slip(text, slip).encode())
    done = CliRunner().invoke(main, ["check-config", str(file)])
    assert done.exception is None or isinstance(done.exception, SystemExit), (flag, done.exception)
    assert done.exit_code in {0, 2}
    assert (done.exit_code == 0) == ("error:" not in done.stderr)


@given(slip=SLIP)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
def test_a_file_that_is_accepted_has_the_limits_that_are_written(tmp_path: Path, slip: tuple[int, int, str]) -> None:
    file = tmp_path / "file.toml"
    file.write_bytes(with_slip(QUOTAS, slip).encode())
    try:
        entries = active_quotas(config(*UPSTREAM, "--quotas-file", str(file))).entries
    except ConfigError:
        return
    tables = tomllib.loads(file.read_bytes().decode("utf-8-sig")).get("quota", [])
    found = sorted(float(rate) for entry in entries for rate in entry.limits.values())
    assert found == sorted(
        float(written(rate)) for table in tables for key, rate in table.items() if key.endswith("_rate")
    )
