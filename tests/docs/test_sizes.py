"""The sizes that the chart's README recommends follow from the figures of one process in docs/operate.md."""

import re

import yaml

from tests.docs.pages import ROOT, rows

PAGE = (ROOT / "docs/operate.md").read_text(encoding="utf-8")
CHART = ROOT / "deploy/helm/kafka-quota-proxy"
SIZES = [row for row in rows((CHART / "README.md").read_text(encoding="utf-8")) if len(row) == 7]
#: 1 MB, and a connection with TLS on both sides: docs/tls.md.
MB, TLS_BYTES = 1_000_000, 41_000


def test_sizes_hold_the_load_that_stands_beside_them() -> None:
    at_rest, connection_kb = map(int, re.findall(r"(\d+) MB at rest, (\d+) kB for each idle connection", PAGE)[0])
    seconds_per_gb = float(re.findall(r"1 MiB requests take ([\d.]+) s for each GB", PAGE)[0])
    assert "Limit the container to twice their sum" in PAGE
    header, _, *sizes = SIZES
    assert header[5:] == ["memory limit", "maxBufferedBytes"]
    for _, megabytes, connections, tls, cpu, memory, buffered in sizes:
        each = TLS_BYTES if tls == "both sides" else connection_kb * 1000
        used = at_rest * MB + int(connections.replace(",", "")) * each + int(buffered.removesuffix("MiB")) * 2**20
        assert int(memory.removesuffix("Mi")) * 2**20 >= 2 * used * 0.99
        assert int(cpu.split("m")[0]) >= int(megabytes) * seconds_per_gb, "thousandths of a core"


def test_the_first_one_is_the_default_of_the_chart() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    [cells] = [row for row in SIZES if row[0] == "sidecar (the chart's defaults)"]
    resources = values["resources"]
    assert cells[4:] == [resources["requests"]["cpu"], resources["limits"]["memory"], values["maxBufferedBytes"]]
