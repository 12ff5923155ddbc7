"""Reads the files of a configuration. They are read again when they change, so they are regular files."""

import errno
import os
import stat
from pathlib import Path

from proxy.config.errors import ConfigError
from quotas.problems import Problem


def read_file(path: Path) -> bytes:
    """The content of a regular file. Raises OSError, also for a pipe or a device, which may have its content only once;
    opening a pipe would wait for a writer.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file, which could be read again when it changes")
        return file.read()


def read_text(path: Path, *, place: str, errors: str = "strict") -> str:
    """The text of such a file, in UTF-8. Raises ConfigError, with `place`, which names the file."""
    try:
        content = read_file(path)
        if content[:2] in {b"\xff\xfe", b"\xfe\xff"}:
            raise ConfigError([Problem(place, "is in UTF-16", "save it as UTF-8")])
        return content.decode("utf-8-sig", errors)  # some editors begin a file with a byte order mark
    except OSError as error:
        raise ConfigError([Problem(place, f"cannot be read: {error.strerror or error}")]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([Problem(place, f"is not UTF-8 at byte {error.start}", "save it as UTF-8")]) from error
