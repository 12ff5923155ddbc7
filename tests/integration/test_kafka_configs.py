"""kafka-configs, as operators run it: what it shows and changes through the proxy, and who may use it."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from cryptography.x509 import load_pem_x509_certificate

from deploy.local.cluster import KafkaCluster
from deploy.local.security import Security
from deploy.local.tools import configs_command
from tests.conftest import UniqueName
from tests.integration.proxy_process import ProxyProcess
from tests.integration.test_own_login import properties
from tests.integration.test_sasl import java
from tests.integration.test_tls import Sides

PROGRAM = Path(__file__).with_name("KafkaConfigs.java")
RUN_SECONDS = 200
USERS, CLIENTS, IPS = "--entity-type users", "--entity-type clients", "--entity-type ips"
ALICE, ETL, DEFAULT = f"{USERS} --entity-name alice", f"{CLIENTS} --entity-name etl", "--entity-default"
ADDRESS = f"{IPS} --entity-name 10.0.0.7"
#: What operators set, in each form of an entity.
CHANGES = (
    f"{ALICE} --add-config producer_byte_rate=5000000",
    f"{ALICE} {ETL} --add-config producer_byte_rate=1000000,consumer_byte_rate=2000000",
    f"{ALICE} {CLIENTS} {DEFAULT} --add-config request_percentage=200",
    f"{USERS} {DEFAULT} --add-config producer_byte_rate=3000000",
    f"{USERS} {DEFAULT} {CLIENTS} {DEFAULT} --add-config consumer_byte_rate=4000000",
    f"{USERS} {DEFAULT} {ETL} --add-config consumer_byte_rate=4500000.5",
    f"{CLIENTS} {DEFAULT} --add-config controller_mutation_rate=5",
    f"{ADDRESS} --add-config connection_creation_rate=20",
    f"{IPS} {DEFAULT} --add-config connection_creation_rate=300",
    "--client web --add-config consumer_byte_rate=7",
)
SHOWN = (
    *(USERS, CLIENTS, f"{USERS} {CLIENTS}", IPS, ALICE, f"{ALICE} {ETL}", f"{ALICE} {CLIENTS} {DEFAULT}"),
    *(f"{USERS} {DEFAULT}", f"{USERS} {DEFAULT} {CLIENTS} {DEFAULT}", ADDRESS, f"{IPS} {DEFAULT}"),
    *("--user alice", "--client web", "--user-defaults --client-defaults", "--user alice --client nobody"),
)
#: Changes of what is there, and what is refused.
FURTHER = (
    f"--alter {ALICE} {ETL} --add-config producer_byte_rate=9 --delete-config consumer_byte_rate",
    f"--describe {ALICE} {ETL}",
    f"--alter {ALICE} --delete-config consumer_byte_rate",
    f"--alter {ALICE} --add-config producer_byte_rat=1",
    f"--alter {ALICE} --add-config producer_byte_rate=-1",
    f"--alter {ALICE} --add-config producer_byte_rate=1.5",
    f"--alter {ALICE} --add-config request_percentage=0",
    f"--alter {IPS} --entity-name no.such.host.invalid --add-config connection_creation_rate=1",
)
REMOVED = tuple(
    f"--alter {change.partition(' --add-config ')[0]} --delete-config {setting.partition('=')[0]}"
    for change in CHANGES
    for setting in change.partition(" --add-config ")[2].split(",")
    if "etl" not in change or "alice" not in change or "producer" in setting
)


COMMANDS = (f"--alter {ETL} --add-config producer_byte_rate=5000000", f"--describe {ETL}")


def configs(version: str, bootstrap: str, commands: Sequence[str], file: Path | None = None) -> list[str]:
    """What each command prints, without the place of an error, and its exit code."""
    where = ["--bootstrap-server", bootstrap, *(() if file is None else ("--command-config", str(file)))]
    text = "".join("\t".join([*where, *command.split()]) + "\n" for command in commands)
    program = configs_command(version, PROGRAM)
    done = subprocess.run(program, input=text, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if not line.startswith(("\tat ", "Error while executing"))]
    printed, answers = [], []
    for line in lines:
        printed.append(line)
        if line.startswith("$ "):
            answers.append("\n".join(printed))
            printed = []
    return answers


@pytest.mark.nightly  # test_quotas_topic has Java's Admin client
@pytest.mark.claim("kafka-quotas", "kafka-configs of 4.3 and 4.4 prints through the proxy what it prints at a broker")
@pytest.mark.timeout(500)
@pytest.mark.parametrize("version", ["4.3.1", "4.4.0"])
def test_it_prints_what_it_prints_at_a_broker(unique_name: UniqueName, version: str) -> None:
    commands = [f"--alter {each}" for each in CHANGES] + [f"--describe {each}" for each in SHOWN]
    commands += [*FURTHER, *REMOVED, *(f"--describe {each}" for each in SHOWN)]
    with KafkaCluster(1) as cluster:
        flags = ("--quotas-topic", "quotas", "--quota-admins", "User:ANONYMOUS")
        with ProxyProcess(cluster.bootstrap_servers, *flags) as proxy:
            through = configs(version, proxy.bootstrap_servers, commands)
        direct = configs(version, cluster.bootstrap_servers, commands)
    assert dict(zip(commands, through, strict=True)) == dict(zip(commands, direct, strict=True))
    assert "consumer_byte_rate=4000000.0" in "".join(through)


@pytest.mark.claim("kafka-quotas", "only --quota-admins use the API: by SCRAM login or certificate; errors name it")
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "how",
    ["SCRAM", *(pytest.param(each, marks=pytest.mark.nightly) for each in ("SCRAM over TLS", "CN", "whole name"))],
)
def test_only_admins_may_use_it(
    secured_cluster: KafkaCluster, security: Security, unique_name: UniqueName, tmp_path: Path, how: str
) -> None:
    """By a login, the common name of a certificate that a rule takes, or its whole distinguished name."""
    users, has_tls = ("alice", "bob"), how != "SCRAM"
    names = list(users)
    own = tmp_path / "own"
    own.mkdir()
    sides = Sides(security, tmp_path, "both" if has_tls else "broker")
    flags = list(sides.flags) if has_tls else []
    if how.startswith("SCRAM"):
        protocol = "SASL_SSL" if has_tls else "SASL_PLAINTEXT"
        flags += ["--own-client-config", str(properties(own, security, protocol, "SCRAM-SHA-256"))]
        files = [java(tmp_path, "SCRAM-SHA-512", name, security.users[name]) for name in users]
        for file in files if has_tls else ():
            lines = file.read_text().replace("SASL_PLAINTEXT", protocol), sides.java().read_text().partition("\n")[2]
            file.write_text("".join(lines))
    else:
        protocol = "SSL"
        flags += ["--ssl-client-auth", "required", "--ssl-ca-location", str(sides.ca)]
        flags += [] if how == "whole name" else ["--ssl-principal-mapping-rules", "RULE:^CN=([a-z]+).*$/$1/"]
        issued = [security.issue(tmp_path, name, common_name=name) for name in users]
        files = [sides.java(each).rename(each.both.with_suffix(".properties")) for each in issued]
        if how == "whole name":
            subjects = [load_pem_x509_certificate(each.certificate.read_bytes()).subject for each in issued]
            names = [each.rfc4514_string().replace("#", r"\#") for each in subjects]  # as Java writes it
    flags += ["--quotas-topic", unique_name("quotas"), "--quota-admins", f"User:{names[0]}"]
    with ProxyProcess(secured_cluster.secure_addresses(protocol), *flags) as proxy:
        by_admin, by_other = (configs("4.4.0", proxy.bootstrap_servers, COMMANDS, file) for file in files)
    assert by_admin == [
        "Completed updating config for client etl.\n$ 0",
        "Quota configs for client-id 'etl' are producer_byte_rate=5000000.0\n$ 0",
    ]
    for each in by_other:
        assert "ClusterAuthorizationException" in each
        assert f"User:{names[1]} may not describe or alter the quotas of --quotas-topic" in each
        assert "add it to --quota-admins of the proxy" in each
