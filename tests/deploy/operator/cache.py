"""Tools and root file systems that are made once and kept: $XDG_CACHE_HOME/kafka-quota-proxy-tools, or .cache/tools.

What is missing fails the test, with the command that installs it: no test is skipped.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[3]
_HOME: Final = os.environ.get("XDG_CACHE_HOME")
CACHE: Final = Path(_HOME) / "kafka-quota-proxy-tools" if _HOME else ROOT / ".cache" / "tools"
MIRROR: Final = "http://deb.debian.org/debian"
#: Debian's packages that have these commands.
PACKAGES: Final = {
    "bwrap": "bubblewrap",
    "systemd-nspawn": "systemd-container",
    "promtool": "prometheus",
    "amtool": "prometheus-alertmanager",
    "systemd-analyze": "systemd",
    "man": "man-db",
    "krb5kdc": "krb5-kdc",
    "kdb5_util": "krb5-kdc",
    "kadmin.local": "krb5-admin-server",
    "chromium": "chromium",
}


def system_tool(name: str) -> str:
    """The path of a command that the distribution has."""
    found = shutil.which(name)
    if found is None:
        pytest.fail(f"{name} is not installed: apt install {PACKAGES.get(name, name)}")
    return found


def built_tool(name: str) -> str:
    """The path of a command that `make deploy-tools` builds."""
    path = CACHE / name
    if not path.exists():
        pytest.fail(f"there is no {path}: make deploy-tools builds it, in 15 minutes")
    return str(path)


def debian_root(name: str, packages: str) -> Path:
    """A tar of a minimal Debian with these packages (comma-separated)."""
    path = CACHE / "roots" / f"{name}.tar"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".part.tar")
        command = [system_tool("mmdebstrap"), "--quiet", "--variant=minbase", f"--include={packages}"]
        subprocess.run([*command, "bookworm", str(partial), MIRROR], check=True)
        partial.rename(path)
    return path


def run(*command: str | Path, code: int = 0) -> str:
    """What a command prints, on both streams. Fails where it ends with another code."""
    done = subprocess.run(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == code, f"{command}: {done.returncode}\n{done.stdout[-4000:]}"
    return done.stdout
