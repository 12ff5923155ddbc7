"""The files of deploy/ by their linters: fast, and part of `make check`. Each linter is shown a wrong file, too."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.deploy.operator.cache import ROOT, run

SYSTEMD: Final = ROOT / "deploy/systemd"
BIN: Final = Path(sys.executable).parent
DOCKERFILE: Final = ROOT / "deploy/image/Dockerfile"


def test_the_dockerfile_has_no_findings_and_a_bad_one_has(tmp_path: Path) -> None:
    run(BIN / "hadolint", DOCKERFILE)
    bad = tmp_path / "Dockerfile"
    bad.write_text(
        DOCKERFILE.read_text().replace("USER 65532:65532", "USER root").replace("WORKDIR /src", "RUN cd src")
    )
    findings = run(BIN / "hadolint", bad, code=1)
    assert "DL3002" in findings
    assert "DL3003" in findings


@pytest.mark.parametrize(
    ("name", "parts"), [("requirements", ["--no-dev"]), ("build-requirements", ["--only-group", "image"])]
)
def test_the_image_installs_what_is_locked(name: str, parts: list[str]) -> None:
    export = [str(BIN / "uv"), "export", "--frozen", "--offline", "--no-header", "--no-emit-project", "--no-annotate"]
    exported = subprocess.run([*export, *parts], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert (ROOT / f"deploy/image/{name}.txt").read_text() == exported, "make lock writes it"


@pytest.mark.parametrize("name", ["proxy.toml", "quotas.toml"])
def test_the_samples_of_a_host_are_right_with_what_is_commented_out(name: str, tmp_path: Path) -> None:
    installed = "/etc/kafka-quota-proxy"
    (tmp_path / "client.properties").touch(0o600)
    for file in ("proxy.toml", "quotas.toml"):
        text = (SYSTEMD / file).read_text().replace(installed, str(tmp_path))
        text = text.replace("/run/credentials/kafka-quota-proxy.service", str(tmp_path))
        (tmp_path / file).write_text(re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE))
    checked = run(BIN / "kafka-quota-proxy", "check-config", tmp_path / name)
    assert "2 quota entries" in checked
    assert ("dry run" in checked) is (name == "proxy.toml"), "begin with it"
    assert f"--config {installed}/proxy.toml" in (SYSTEMD / "kafka-quota-proxy.service").read_text()
    wrong = tmp_path / "quotas.toml"
    wrong.write_text(wrong.read_text().replace("producer_byte_rate", "producer_rate"))
    assert "producer_byte_rate" in run(BIN / "kafka-quota-proxy", "check-config", tmp_path / name, code=2)
