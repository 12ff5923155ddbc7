"""What a release has, into dist/: `make dist`, or `python -m deploy.release`.

wheel and sdist, the chart as `helm package` would name it, the rules and the dashboard, the unit, the list of parts
(CycloneDX) and SHA256SUMS. The same commit gives the same bytes: times are those of the commit, or SOURCE_DATE_EPOCH.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
BIN: Final = Path(sys.executable).parent
CHART: Final = ROOT / "deploy/helm/kafka-quota-proxy"
#: As .helmignore.
NOT_IN_CHART: Final = ("tests", "ci", ".helmignore")
FILES: Final = (
    ROOT / "deploy/systemd/kafka-quota-proxy.service",
    ROOT / "deploy/monitoring/rules.yaml",
    ROOT / "deploy/monitoring/dashboard.json",
)


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


def archive(folder: Path, target: Path, at: int, without: tuple[str, ...] = ()) -> None:
    """A .tgz of a folder under its own name. Order, times, owners and modes do not depend on the machine."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder)
            if path.is_dir() or name.parts[0] in without:
                continue
            entry = tarfile.TarInfo(f"{folder.name}/{name}")
            data = path.read_bytes()
            entry.size, entry.mtime, entry.mode = len(data), at, 0o644
            tar.addfile(entry, io.BytesIO(data))
    target.write_bytes(gzip.compress(content.getvalue(), mtime=at))


def build(target: Path) -> list[Path]:
    """Fill an empty folder; returns the files, SHA256SUMS last."""
    at = time_of_commit()
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(at)}
    target.mkdir(parents=True)
    command = [str(BIN / "uv"), "build", "--quiet", "--no-build-isolation", "--python", sys.executable]
    subprocess.run([*command, "--out-dir", str(target)], cwd=ROOT, env=environment, check=True)
    (target / ".gitignore").unlink(missing_ok=True)
    archive(CHART, target / f"kafka-quota-proxy-chart-{version()}.tgz", at, NOT_IN_CHART)
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
    target = ROOT / "dist"
    shutil.rmtree(target, ignore_errors=True)
    for path in build(target):
        print(f"{path.stat().st_size:>9,}  {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
