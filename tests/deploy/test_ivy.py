"""Running Ivy: proxies for Java, the module file, complaints, the one inside PySpark."""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from deploy.local.errors import DownloadFailed
from deploy.local.ivy import IvyRun, bundled_ivy_command, run_ivy


def a_run(directory: Path) -> IvyRun:
    modules = ("org.example:a:1", "org.example:b:2")
    return IvyRun("thing", modules, False, directory, directory / "target", expected=("a-1.jar", "b-2.jar"))


def test_without_pyspark_it_says_what_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)  # what Python notes of a module that is not there
    with pytest.raises(DownloadFailed, match="make setup"):
        bundled_ivy_command()


def test_is_given_every_module_and_shows_progress(tmp_path: Path) -> None:
    cached = tmp_path / "ivy" / "org.example" / "a" / "jars" / "a-1.jar"
    cached.parent.mkdir(parents=True)
    cached.write_bytes(bytes(2_500_000))
    (cached.parent / "b-2.jar.part").write_bytes(bytes(500_000))
    (cached.parent / "of-another-set.jar").write_bytes(b"!")
    lines: list[str] = []
    assert run_ivy([sys.executable, "-c", "pass"], a_run(tmp_path), lines.append) == ""
    assert lines[-1].startswith("fetching thing: 1 of 2 jars, 3.0 MB")
    module = ElementTree.parse(tmp_path / "thing.ivy.xml")  # noqa: S314  written by the line above
    dependencies = [(each.get("name"), each.get("rev"), each.get("transitive")) for each in module.iter("dependency")]
    assert dependencies == [("a", "1", "false"), ("b", "2", "false")]


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("print('fine'); print('\\t[FAILED     ] a#a;1!a.jar: (0ms)'); exit(1)", "[FAILED     ] a#a;1!a.jar: (0ms)"),
        ("exit(3)", "Ivy ended with exit code 3"),
    ],
)
def test_a_failure_is_reported_in_one_line(tmp_path: Path, script: str, complaint: str) -> None:
    assert run_ivy([sys.executable, "-c", script], a_run(tmp_path), lambda line: None) == complaint
