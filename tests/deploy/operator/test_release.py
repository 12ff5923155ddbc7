"""What `make dist` makes: the same bytes twice, and an installed wheel that works."""

import hashlib
import json
import shutil
import subprocess
import tarfile
import venv
from pathlib import Path
from typing import Final

import pytest
import yaml

from deploy import release
from tests.deploy.operator.cache import ROOT, built_tool, run

BRANCH: Final = ".github/workflows/release.yml"


def test_one_version_everywhere() -> None:
    chart = yaml.safe_load((release.CHART / "Chart.yaml").read_text())
    assert {chart["version"], chart["appVersion"]} == {release.version()}
    ignored = (release.CHART / ".helmignore").read_text().split()
    assert {each.rstrip("/") for each in ignored} | {".helmignore"} == set(release.NOT_IN_CHART)


def test_a_tag_runs_the_targets_that_developers_run() -> None:
    workflow = yaml.safe_load((ROOT / BRANCH).read_text())
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    called = [step["run"] for step in steps if step.get("run", "").startswith("make ")]
    targets = set((ROOT / "Makefile").read_text().split())
    assert called
    assert all(f"{word}:" in targets for each in called for word in each.split()[1:] if "=" not in word)
    assert all(len(step["uses"].partition("@")[2].split()[0]) >= 2 for step in steps if "uses" in step)


@pytest.mark.deploy
def test_the_workflow_has_no_findings_and_a_bad_one_has(tmp_path: Path) -> None:
    lint = (built_tool("actionlint"), "-oneline", "-shellcheck=", "-pyflakes=")
    run(*lint, ROOT / BRANCH)
    text, bad = (ROOT / BRANCH).read_text(), tmp_path / "release.yml"
    for right, wrong, finding in (
        ("runs-on:", "run-on:", 'unexpected key "run-on"'),
        ("packages: write", "package: write", 'unknown permission scope "package"'),
        ("secrets.GITHUB", "secret.GITHUB", 'undefined variable "secret"'),
        ("python-version:", "python-versions:", 'input "python-versions" is not defined'),
    ):
        assert right in text
        bad.write_text(text.replace(right, wrong))
        assert finding in run(*lint, bad, code=1)


@pytest.mark.deploy
@pytest.mark.timeout(600)
def test_two_builds_have_the_same_bytes_and_the_wheel_works(tmp_path: Path) -> None:
    tree = tmp_path / "elsewhere"
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in names.stdout.splitlines():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tree / name)
    at = str(release.time_of_commit())
    one = {path.name: path.read_bytes() for path in release.build(tmp_path / "one")}
    program = "import sys; from pathlib import Path; from deploy import release; release.build(Path(sys.argv[1]))"
    subprocess.run(
        [release.BIN / "python", "-c", program, tmp_path / "two"],
        cwd=tree, env={"PYTHONPATH": str(tree), "SOURCE_DATE_EPOCH": at, "PATH": "/usr/bin:/bin"}, check=True,
    )  # fmt: skip
    two = {path.name: path.read_bytes() for path in (tmp_path / "two").iterdir()}
    assert one.keys() == two.keys()
    differing = [name for name in one if one[name] != two[name]]
    assert not differing, (one[differing[0]][:3000], two[differing[0]][:3000])
    for line in one["SHA256SUMS"].decode().splitlines():
        expected, name = line.split("  ")
        assert hashlib.sha256(one[name]).hexdigest() == expected

    version = release.version()
    chart = tmp_path / f"one/kafka-quota-proxy-chart-{version}.tgz"
    values = release.CHART / "ci/sidecar-values.yaml"
    assert "MutatingAdmissionPolicy" in run(
        built_tool("helm"), "template", "kqp", chart, "--kube-version", "1.36.0", "--values", values
    )
    with tarfile.open(chart) as packed:
        assert not [name for name in packed.getnames() if "/ci/" in name or "/tests/" in name]
    assert {"rules.yaml", "dashboard.json", "proxy.toml", "quotas.toml"} <= one.keys()
    parts = json.loads(one[f"kafka-quota-proxy-{version}.cdx.json"])
    assert {"uvloop", "crc32c"} <= {each["name"] for each in parts["components"]}

    home = tmp_path / "installed"
    venv.create(home, with_pip=False)
    uv: list[str | Path] = [release.BIN / "uv", "pip", "install", "--quiet", "--python", home / "bin/python"]
    run(*uv, "--requirements", ROOT / "deploy/image/requirements.txt", "--require-hashes")
    run(*uv, "--offline", "--no-deps", tmp_path / f"one/kafka_quota_proxy-{version}-py3-none-any.whl")
    command = home / "bin/kafka-quota-proxy"
    assert f"version {version} (pure Python)" in run(command, "--version")
    assert "no such file" in run(command, "check-config", tmp_path / "nothing.toml", code=2).lower()
    run(command, "healthcheck", "--metrics-listen", "127.0.0.1:9", code=1)
    (quotas := tmp_path / "quotas.toml").write_text('[[quota]]\ntotal = true\nproducer_byte_rate = "5kB"\n')
    found = run(command, "simulate", quotas, "--client", "etl: 10kB/s", "--for", "10s")
    assert "etl: a limit of this proxy is holding it back" in found
    assert len(run(command, "install-help", "--prefix", home).splitlines()) == 4
