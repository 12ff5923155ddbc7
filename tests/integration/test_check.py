"""`check` against real brokers, one of which wants logins."""

import subprocess
import sys
from pathlib import Path

from deploy.local.cluster import KafkaCluster
from tests.conftest import UniqueName


def checked(*arguments: str) -> tuple[int, list[str]]:
    ports = ("--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0")
    command = [sys.executable, "-m", "proxy", "check", *ports, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_all_that_a_start_needs(kafka_cluster: KafkaCluster, unique_name: UniqueName, tmp_path: Path) -> None:
    usage, fleet, servers = unique_name("usage"), unique_name("fleet"), kafka_cluster.bootstrap_servers
    shared = ("--fleet", "one", "--fleet-topic", fleet)
    flags = ("--usage-topic", usage, *shared, "--cluster-quotas", "total", "--disk-guard", "85%..95%")
    code, lines = checked("--bootstrap-servers", servers, *flags)
    assert (code, [line[0] for line in lines]) == (0, ["✓"] * len(lines))
    assert lines[-5] == f"✓ advertised.listeners of broker 1: {servers} answers"
    assert lines[-4].startswith("✓ --disk-guard: the fullest disk of broker 1 is used to ")
    assert lines[-3].endswith(" entities with quotas can be read")
    assert lines[-2:] == [
        f"✓ --usage-topic: {usage} can be written",
        f"✓ --fleet-topic: {fleet} can be read and written",
    ]
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=u\nsasl.password=hidden\n")
    file.chmod(0o600)
    code, lines = checked("--bootstrap-servers", servers, "--command-config", str(file))
    assert code == 1
    assert any(line.startswith(f"✗ --bootstrap-servers: {servers}: illegal_sasl_state") for line in lines)
    assert "hidden" not in "".join(lines)
