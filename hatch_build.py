"""Compiles the hot modules with mypyc: in place for `make compile`, and as the build hook of a compiled wheel.

The hook is off by default: a wheel is pure Python unless HATCH_BUILD_HOOKS_ENABLE=1 is set. See docs/compiled.md.

The pure build is the reference. Where mypyc differs from Python, write code that behaves the same in both:

- mypyc trusts mypy. After ``x.current = None`` and a call that sets ``x.current``, mypy still takes it for None, and a
  compiled read raises TypeError. Read it in another method, the way ``RequestStream.held`` does.
- A parameter or result of type ``float`` turns an int into a float. Write ``int | float`` where both may be shown.
- A second base must be a ``Protocol`` (``Owner`` in proxy/sessions/pump.py). Only calls of classes that inherit from it
  explicitly are fast.
- The default of a class attribute must be a literal or a ``Final`` name.
- Import types in dataclass annotations at run time, not under ``TYPE_CHECKING``.
- Mark a test with ``pytest.mark.pure`` if it replaces a ``Final`` constant or a method of a native class, copies an
  object, or reads ``__slots__`` or a module's docstring: ``make check-compiled`` leaves such tests out.
- List deleted attributes in ``__deletable__``. Native classes have no weak references.
"""

import contextlib
import os
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
#: What a frame passes through. A native class has no interpreted subclasses, so these folders are compiled whole.
COMPILED = ("protocol", "quotas", "proxy/streams", "proxy/enforcement", "proxy/sessions")
#: Cold, and full of what mypyc compiles to nothing faster; wires have subclasses outside of the compiled code.
INTERPRETED = (
    "quotas/adaptive/yielding.py",
    "quotas/connections.py",
    "quotas/fleet",
    "quotas/parsing",
    "proxy/sessions/gate.py",
    "proxy/sessions/proxy_headers.py",
    "proxy/sessions/sweep.py",
    "proxy/sessions/tls_wire.py",
    "proxy/sessions/wire.py",
)
#: Also the name of mypyc's own library of all modules, which it derives from a hash otherwise.
GROUP = "kafka_quota_proxy"


class CannotCompile(Exception):
    """A tool is missing; the message says how to install it."""


def sources() -> list[str]:
    """The files to compile, relative to the project. `__init__` modules contain no code."""
    found = [path.relative_to(ROOT) for folder in COMPILED for path in (ROOT / folder).rglob("*.py")]
    return sorted(str(path) for path in found if path.name != "__init__.py" and not str(path).startswith(INTERPRETED))


def check_compiler() -> None:
    """Raises CannotCompile without a C compiler or the headers of this Python."""
    hint = "install it (Debian/Ubuntu: apt install gcc python3-dev), or set CC"
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        raise CannotCompile(f"a C compiler is needed, and there is no {compiler}: {hint}")
    headers = Path(sysconfig.get_path("include"), "Python.h")
    if not headers.exists():
        raise CannotCompile(f"the headers of Python are needed, and there is no {headers}: {hint}")


def compile_into(target: Path) -> list[Path]:
    """Compile `sources` below `target`; returns the extension modules. What has not changed is not compiled again.

    Raises CannotCompile without a compiler, and SystemExit where mypy or the compiler finds errors.
    """
    check_compiler()
    from mypyc.build import mypycify
    from setuptools import Distribution

    build = ROOT / "build" / "mypyc"
    build.mkdir(parents=True, exist_ok=True)
    with contextlib.chdir(ROOT):  # module names come from relative paths
        extensions = mypycify(
            ["--config-file=pyproject.toml", f"--cache-dir={build / 'cache'}", *sources()],
            opt_level=os.environ.get("MYPYC_OPT_LEVEL", "2"),
            debug_level="0",
            target_dir=str(build),
            group_name=GROUP,
        )
        command = Distribution({"name": GROUP, "ext_modules": extensions}).get_command_obj("build_ext")
        command.build_lib, command.build_temp = str(target), str(build)
        command.ensure_finalized()
        command.run()
        return [Path(path) for path in command.get_outputs()]


class CompiledWheel(BuildHookInterface):  # type: ignore[type-arg]
    """Puts the extension modules beside the sources into a wheel for this Python and platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See hatchling. An editable install stays as the tree is."""
        if version == "editable":
            return
        target = ROOT / "build" / "compiled"
        shutil.rmtree(target, ignore_errors=True)
        for path in compile_into(target):
            build_data["force_include"][str(path)] = str(path.relative_to(target))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def main() -> None:
    """Compile in place."""
    try:
        compile_into(ROOT)
    except CannotCompile as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
