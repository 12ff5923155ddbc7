"""Finds a Java runtime that is new enough for Kafka 4 and Spark 4."""

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

from deploy.local.errors import JavaMissing

MINIMUM_JAVA = 17
_INSTALL = (
    f"install Java {MINIMUM_JAVA} or newer (Debian/Ubuntu: apt install openjdk-17-jre-headless) "
    "or point JAVA_HOME at one"
)


@functools.cache
def find_java() -> str:
    """The path of `java`: JAVA_HOME's if that is set, else the first on PATH.

    Raises JavaMissing when there is none or it is older than Java 17.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        raise JavaMissing(f"no java on PATH: {_INSTALL}")
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
    except (OSError, subprocess.SubprocessError) as error:
        raise JavaMissing(f"{java} does not run ({error}): {_INSTALL}") from error
    major = java_major(answer)
    if major < MINIMUM_JAVA:
        raise JavaMissing(f"{java} is Java {major}: {_INSTALL}")
    return java


def java_major(version_text: str) -> int:
    """The major version in what `java -version` prints; 0 when there is none. Java 8 calls itself 1.8."""
    found = re.search(r'version "(?:1\.)?(\d+)', version_text)
    return int(found.group(1)) if found else 0
