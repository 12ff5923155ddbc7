"""Whether files may have changed, by `stat`: this works for an editor's rename, for the symbolic links by which Kubernetes
swaps a ConfigMap or a Secret, and on network file systems.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

Fingerprint = tuple[int, ...]
"""A value that differs when the file may have changed; the first part is its size."""


def fingerprints(paths: Iterable[Path | None]) -> tuple[Fingerprint | None, ...]:
    """One for each path; None without a path, and where `stat` fails."""
    return tuple([None if path is None else _fingerprint(path) for path in paths])


def _fingerprint(path: Path) -> Fingerprint | None:
    try:
        found = path.stat()
    except OSError:
        return None
    # The ctime too: permissions may have changed, so that the file can be read now.
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev
