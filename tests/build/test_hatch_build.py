"""The build hook without a compiler: a clone needs none."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import hatch_build


def test_what_a_frame_passes_through_is_compiled_and_no_package_is() -> None:
    sources = hatch_build.sources()
    assert {"protocol/produce_walk.py", "quotas/algorithms/token_bucket.py", "proxy/sessions/pump.py"} <= set(sources)
    assert not [path for path in sources if path.endswith("__init__.py") or path.startswith(hatch_build.INTERPRETED)]
    assert all((hatch_build.ROOT / path).exists() for path in (*hatch_build.COMPILED, *hatch_build.INTERPRETED))


def test_wheel_sdist_and_image_have_the_packages_that_the_command_imports() -> None:
    targets = tomllib.loads((hatch_build.ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    packages = {"proxy", "protocol", "quotas", "simulation"}
    assert set(targets["wheel"]["packages"]) == packages
    assert packages <= set(targets["sdist"]["include"])
    image = hatch_build.ROOT / "deploy/image"
    assert {f"COPY {each} {each}" for each in packages} <= set((image / "Dockerfile").read_text().splitlines())
    assert {f"!{each}" for each in packages} <= set((image / "Dockerfile.dockerignore").read_text().splitlines())


def test_without_a_compiler_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -pthread")
    done = subprocess.run(
        [sys.executable, hatch_build.__file__], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "error: a C compiler is needed, and there is no no-such-compiler: "
        "install it (Debian/Ubuntu: apt install gcc python3-dev), or set CC\n"
    )


def test_without_the_headers_of_python_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", sys.executable)  # a program that exists
    monkeypatch.setattr("sysconfig.get_path", lambda _name: str(tmp_path))
    with pytest.raises(hatch_build.CannotCompile, match=r"Python\.h: install it"):
        hatch_build.check_compiler()
