"""The image: its real Dockerfile built by buildah on a stand-in for its base, and run under bubblewrap.

No base can be taken from a registry here: a minimal Debian with Python has its name.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tarfile
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from deploy import release
from tests.deploy.operator.cache import ROOT, debian_root, run, system_tool

if TYPE_CHECKING:
    from collections.abc import Iterator

BASE: Final = "docker.io/library/python:3.14-slim"
USER: Final = 65532
#: Of all files of an image, in seconds since 1970.
TIME: Final = 1_700_000_000
CERTIFICATES: Final = Path("/etc/ssl/certs/ca-certificates.crt")
NAME: Final = "localhost/kafka-quota-proxy:test"
INSTALLED: Final = "opt/kafka-quota-proxy"


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The command, with storage of its own, which is gone afterwards.

    Where overlays are not to be had, as on top of another one, each layer is a copy of all files: twice as slow.
    """
    for driver in ("overlay", "vfs"):
        store = tmp_path_factory.mktemp(driver)
        folders = ["--root", str(store / "root"), "--runroot", str(store / "run")]
        command = [system_tool("buildah"), *folders, "--storage-driver", driver]
        if subprocess.run([*command, "images"], capture_output=True, check=False).returncode == 0:
            break
    yield command
    run(*command, "rm", "--all")
    shutil.rmtree(store, ignore_errors=True)


@pytest.fixture(scope="module")
def image(buildah: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image of the Dockerfile as an OCI layout."""
    folder = tmp_path_factory.mktemp("image")
    pip = folder / "pip.conf"
    pip.write_text(f"[global]\ncert = {CERTIFICATES}\n")
    base = run(*buildah, "from", "scratch").strip()
    run(*buildah, "add", base, debian_root("base", "python3,python3-venv,ca-certificates"), "/")
    run(*buildah, "add", base, CERTIFICATES, str(CERTIFICATES))  # of networks that sign their own
    run(*buildah, "add", base, pip, "/etc/pip.conf")
    run(*buildah, "commit", "--quiet", "--rm", base, BASE)
    run(
        *buildah, "bud", "--isolation", "chroot", "--format", "docker", "--pull-never", "--build-arg", "VERSION=9.9.9",
        "--timestamp", str(TIME),
        "--ignorefile", ROOT / "deploy/image/Dockerfile.dockerignore", "--file", ROOT / "deploy/image/Dockerfile",
        "--tag", NAME, ROOT,
    )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def config(buildah: list[str], image: Path) -> dict[str, object]:
    return dict(json.loads(run(*buildah, "inspect", "--type", "image", NAME))["Docker"]["config"])


@pytest.fixture(scope="module")
def rootfs(buildah: list[str], image: Path) -> Iterator[Path]:
    """The image's files."""
    run(*buildah, "push", "--quiet", NAME, f"oci:{image}/layout:test")
    run(system_tool("umoci"), "unpack", "--image", f"{image}/layout:test", image / "bundle")
    yield image / "bundle/rootfs"
    shutil.rmtree(image / "bundle")


pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900)]


def test_what_the_image_says_of_itself(config: dict[str, object]) -> None:
    assert (config["User"], config["StopSignal"]) == (f"{USER}:{USER}", "SIGTERM")
    assert config["Entrypoint"] == ["kafka-quota-proxy"]
    assert config["Healthcheck"] == {
        "Test": ["CMD", "kafka-quota-proxy", "healthcheck"],
        "Interval": 10_000_000_000, "Timeout": 5_000_000_000, "StartPeriod": 10_000_000_000, "Retries": 3,
    }  # fmt: skip
    labels = config["Labels"]
    assert isinstance(labels, dict)
    assert labels["org.opencontainers.image.version"] == "9.9.9"


def test_what_is_in_it(rootfs: Path, image: Path) -> None:
    parts = {each["name"] for each in json.loads((rootfs / INSTALLED / "sbom.cdx.json").read_text())["components"]}
    assert {"kafka-quota-proxy", "uvloop", "kio", "crc32c"} <= parts
    assert not {"pip", "hatchling", "cyclonedx-bom", "pytest"} & parts, "tools of the build stage"
    own = [path for path in (rootfs / INSTALLED).rglob("*") if path.stat().st_uid == USER]
    assert not own, "it could change itself"
    layers = list((image / "layout/blobs/sha256").iterdir())
    _, compressed = sorted((path.stat().st_size / 1e6 for path in layers), reverse=True)[:2]  # the base is the largest
    unpacked = sum(path.lstat().st_size for path in (rootfs / INSTALLED).rglob("*")) / 1e6
    print(f"\nproxy and its packages: {unpacked:.0f} MB unpacked, {compressed:.0f} MB compressed")
    assert unpacked < 150


def off_switch() -> list[str]:
    """The command of docs/operate.md, as `kubectl exec` executes it: without a shell."""
    page = (ROOT / "docs/operate.md").read_text()
    [command] = re.findall(r"`kubectl exec POD .*?(?<= )-- (.+?)`", page)
    return shlex.split(command)


def test_it_runs_without_rights_on_a_read_only_root_and_drains(rootfs: Path, config: dict[str, object]) -> None:
    environment = dict(each.split("=", 1) for each in config["Env"])  # type: ignore[attr-defined]
    user = json.loads((rootfs.parent / "config.json").read_text())["process"]["user"]  # umoci's, from the image
    confined = [
        system_tool("bwrap"), "--unshare-user", "--unshare-pid", "--as-pid-1", "--cap-drop", "ALL",
        "--uid", str(user["uid"]), "--gid", str(user["gid"]),
        "--ro-bind", str(rootfs), "/", "--proc", "/proc", "--dev", "/dev", "--clearenv",
    ]  # fmt: skip
    for name, value in environment.items():
        confined += ["--setenv", name, value]
    entry = config["Entrypoint"]
    assert isinstance(entry, list)
    ports = ["--listen", "127.0.0.1:29392", "--broker-ports", "29393-29395", "--metrics-listen", "127.0.0.1:29399"]
    command = ["run", "--bootstrap-servers", "127.0.0.1:1", *ports]
    with subprocess.Popen([*confined, *entry, *command], stderr=subprocess.PIPE, text=True) as outer:
        assert outer.stderr is not None
        try:
            while "listening" not in (line := outer.stderr.readline()):
                assert line, "it ended"
            with urllib.request.urlopen("http://127.0.0.1:29399/healthz") as answer:
                assert answer.status == 200
            [inner] = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
            shown = Path(f"/proc/{inner}/status").read_text().splitlines()
            status = dict(line.split(":\t", 1) for line in shown if ":\t" in line)
            assert set(status["CapEff"]) == set(status["CapPrm"]) == {"0"}
            assert status["NoNewPrivs"] == "1"
            mounts = Path(f"/proc/{inner}/mountinfo").read_text().splitlines()
            assert next(line.split()[5] for line in mounts if line.split()[4] == "/").startswith("ro")
            healthy = config["Healthcheck"]
            assert isinstance(healthy, dict)
            check = [*confined, *healthy["Test"][1:], "--metrics-listen"]
            assert "200" in run(*check, "127.0.0.1:29399")
            assert "refused" in run(*check, "127.0.0.1:29398", code=1)
            within = [system_tool("nsenter"), "--target", inner, "--user", "--mount", "--pid", "--preserve-credentials"]
            run(*within, *off_switch())
            while "enforcement_off" not in (line := outer.stderr.readline()):
                assert line, "it ended"
            run(*within, "sleep", "0")  # of the chart's preStop
            os.kill(int(inner), signal.SIGTERM)
            assert outer.wait(60) == 0
            assert "stopped" in outer.stderr.read()
        finally:
            outer.kill()


def test_any_user_can_run_it(rootfs: Path) -> None:
    """As OpenShift, which gives each namespace users of its own: it starts, but may not have a port of root's."""
    ports = ["--listen", "127.0.0.1:949", "--metrics-listen", "127.0.0.1:0"]
    command = [f"/{INSTALLED}/bin/kafka-quota-proxy", "run", "--bootstrap-servers", "127.0.0.1:1", *ports]
    told = run(system_tool("chroot"), "--userspec=1000660000:0", rootfs, *command, code=1)
    assert "cannot listen on 127.0.0.1:949: Permission denied" in told


def test_the_user_is_the_image_s_own(buildah: list[str], image: Path) -> None:
    """As buildah applies it: no option names one."""
    container = run(*buildah, "from", "--pull-never", NAME).strip()
    found = "(*os.getresuid(), *os.getresgid(), os.access('/opt/kafka-quota-proxy', os.W_OK))"
    for user, options in ((USER, []), (0, ["--user", "0:0"])):
        # By the exit code: what is printed does not always arrive.
        asked = f"import os, sys; sys.exit(9 * ({found} != {(*(user,) * 6, user == 0)}))"
        within = ["--isolation", "chroot", container, "--", "python3", "-c"]
        run(*buildah, "run", *options, *within, asked)
        run(*buildah, "run", *options, *within, asked.replace("!=", "=="), code=9)
    run(*buildah, "rm", container)


def test_a_release_has_an_image_with_the_same_files(buildah: list[str], image: Path, tmp_path: Path) -> None:
    """Another build, as OCI layout: its layers have the same bytes."""
    (tmp_path / "made").mkdir()
    release.image_layout(tmp_path / "made", TIME, buildah)
    [path] = (tmp_path / "made").iterdir()
    with tarfile.open(path) as layout:
        layout.extractall(tmp_path / "layout", filter="data")
    blobs = tmp_path / "layout/blobs/sha256"
    [entry] = json.loads((tmp_path / "layout/index.json").read_text())["manifests"]
    assert entry["annotations"]["org.opencontainers.image.ref.name"] == release.version()
    manifest = json.loads((blobs / entry["digest"].removeprefix("sha256:")).read_text())
    made = json.loads((blobs / manifest["config"]["digest"].removeprefix("sha256:")).read_text())
    before = json.loads(run(*buildah, "inspect", "--type", "image", NAME))["OCIv1"]
    assert made["rootfs"]["diff_ids"] == before["rootfs"]["diff_ids"]
    assert made["config"]["Labels"]["org.opencontainers.image.version"] == release.version()
    print(f"\nlayout: {path.stat().st_size / 1e6:.0f} MB")
    run(system_tool("umoci"), "unpack", "--image", f"{tmp_path}/layout:{release.version()}", tmp_path / "bundle")
    process = json.loads((tmp_path / "bundle/config.json").read_text())["process"]
    assert (process["user"]["uid"], process["args"]) == (USER, ["kafka-quota-proxy", "run"])
    compiled = (tmp_path / "bundle/rootfs" / INSTALLED).rglob("*.pyc")
    stale = [path for path in compiled if path.read_bytes()[4:8] != b"\1\0\0\0"]
    assert not stale, "bytecode that Python would compare with the time of its source, and compile at each start"
    shutil.rmtree(tmp_path / "bundle")
