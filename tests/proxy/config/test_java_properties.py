"""JAAS entries and properties as Java reads them: Kafka's and Java's own classes give the expected answers."""

import base64
import random
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import javaproperties
import pytest

from deploy.local.tools import program_command
from proxy.config.java_properties import jaas_options
from quotas.problems import InvalidValue

pytestmark = pytest.mark.claim(
    "security", "sasl.jaas.config and properties are read as by Kafka's and Java's own classes"
)

Read = Callable[[str], Mapping[str, str]]

PROGRAM = Path(__file__).with_name("JavaFiles.java")
RUN_SECONDS = 150.0
#: Each was once read differently.
ENTRIES = [
    r'M required a="\t";',
    r'M required a="\101\1018\4771\08";',
    r'M required a="\q\"\\";',
    'M required a="it\'s" b=\'say "x"\';',
    r"M required a='it\'s';",
    "M required a=bare;",
    "M required a=b.c-d_e$f;",
    "M required a=1x;",
    "M required a=-x;",
    'M required a="b" // c="d";\n;',
    'M required /* a="b" */ c="d";',
    'M required a="b"; // the end',
    'M required a="b" / c="d";\n;',
    'M required /\na="b";',
    'M required a="b" # c\n;',
    'M required a="to the end of the line\n;',
    'M required a="a line\\\nand one more";',
    'M requisite a="b";',
    'M Required a="b";',
    'M wanted a="b";',
    'M required a="b"',
    'M required a="b" c;',
    'M required a "b";',
    'M required a="b"; N required c="d";',
    '"a module" required 5="x" a="";',
    'M required é="流😀";',
    'M required a="\\',
    "",
    ";",
]
#: Parts of random texts.
_OF_ENTRIES = [
    *'Mab==  ""\'\\;/*-.179#$_é流😀 \n\r\t\0\x7f\x85\u0131',
    *("required", "//", "/*", "*/", r"\t", r"\101", r"\477", r"\u0041", 'x="y"'),
]
_OF_PROPERTIES = [
    *"ak=:\\#!é流😀 \t\f\v\n\r\x85\u2028\0\ufeff",
    *("\\\n", "\\\r\n ", "\r\n", r"\u0041", r"\u00e", r"\ud83d\ude00", r"\ud83d", r"\n", r"\q", r"\=", r"\:"),
]
#: A line that continues although it is empty. For Java the next one is a comment if it looks like one, and a last one
#: is a property without a name; the library has neither.
_CONTINUED_NOTHING = re.compile(r"(?:^|[\n\r])[ \t\f]*\\(?:[\n\r]|\Z)")


def as_java_reads(kind: str, texts: Sequence[str]) -> list[Mapping[str, str] | None]:
    """Options or properties of each text; None: Java refuses it. One start of Java for all."""
    lines = "".join(f"{kind} {base64.b64encode(each.encode('utf-16-be')).decode()}\n" for each in texts)
    command = program_command("4.3.1", PROGRAM)
    done = subprocess.run(command, input=lines.encode(), capture_output=True, timeout=RUN_SECONDS, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    answers = done.stdout.decode().split("\n")[:-1]
    assert len(answers) == len(texts)
    return [None if each == "refused" else _found(each) for each in answers]


def _found(answer: str) -> Mapping[str, str]:
    parts = [base64.b64decode(each).decode("utf-16-be") for each in answer.split(" ")] if answer else []
    return dict(zip(parts[::2], parts[1::2], strict=True))


def as_read_here(read: Read, text: str) -> Mapping[str, str] | None:
    try:
        found = read(text)
    except (InvalidValue, ValueError):
        return None
    return {_without_halves(key): _without_halves(value) for key, value in found.items()}


def _without_halves(text: str) -> str:
    """As Java writes it: U+FFFD for half of a surrogate pair."""
    return text.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "replace")


def differences(
    kind: str, read: Callable[[str], Mapping[str, str]], texts: Sequence[str]
) -> Sequence[tuple[object, ...]]:
    """The shortest five."""
    expected = as_java_reads(kind, texts)
    assert any(expected)
    assert None in expected
    both = [(text, java, as_read_here(read, text)) for text, java in zip(texts, expected, strict=True)]
    return sorted((len(text), text, java, here) for text, java, here in both if java != here)[:5]


def test_entries_of_jaas() -> None:
    rng = random.Random(41)

    def some(most: int) -> str:
        return "".join(rng.choices(_OF_ENTRIES, k=rng.randrange(most)))

    texts = [f"M required {some(14)};" for _ in range(2_000)]
    texts += [f'M required a="{some(10)}";' for _ in range(2_000)]
    texts += [some(20) for _ in range(1_000)]
    assert differences("jaas", jaas_options, ENTRIES + texts) == []


def test_properties() -> None:
    rng = random.Random(41)
    texts = ["".join(rng.choices(_OF_PROPERTIES, k=rng.randrange(16))) for _ in range(5_000)]
    texts = [each for each in texts if not _CONTINUED_NOTHING.search(each)]
    assert len(texts) > 3_000
    assert differences("properties", javaproperties.loads, texts) == []


def test_a_long_entry_takes_no_longer_than_its_length() -> None:
    for part in ("\\", '"', "/*", "a=", "'\\'"):
        with pytest.raises(InvalidValue):
            jaas_options("M required " + part * 200_000)
