"""The chart by helm, its own tests, the schemas of Kubernetes, and the options that the proxy really has.

Against a real API server: `tests/deploy/operator/test_kubernetes.py`.
"""

import os
import re
import shutil
import textwrap
from pathlib import Path
from typing import Any, Final

import pytest
import trustme
import yaml
from kubernetes_validate import validate

from proxy.command.commands import run as run_command
from tests.deploy.operator.cache import ROOT, built_tool, run
from tests.proxy.command_line import config, errors

CHART: Final = ROOT / "deploy/helm/kafka-quota-proxy"
VALUES: Final = sorted((CHART / "ci").glob("*-values.yaml"))
KUBERNETES: Final = "1.36.3"
SCHEMAS: Final = "1.36"
EXAMPLES: Final = ROOT / "deploy/helm/examples"

pytestmark = pytest.mark.deploy


def rendered(values: Path, *options: str) -> list[dict[str, Any]]:
    """The objects of the chart."""
    text = run(
        built_tool("helm"), "template", "kqp", CHART, "--namespace", "jobs", "--kube-version", KUBERNETES,
        "--values", values, *options,
    )  # fmt: skip
    return [each for each in yaml.safe_load_all(text) if each]


def sidecar_of(values: Path, *options: str) -> dict[str, Any]:
    """The container that the pod template has."""
    objects = rendered(values, *options, "--set", "sidecar.injection=template")
    [text] = [
        each["data"]["pod-template.yaml"] for each in objects if each["metadata"]["name"].endswith("-pod-template")
    ]
    [found] = yaml.safe_load(text)["spec"]["initContainers"]
    return dict(found)


def blocks_of(page: str) -> list[str]:
    """What is indented in a page: its commands and files."""
    return [textwrap.dedent(each) for each in re.findall(r"(?:^    .*\n)+", page, flags=re.MULTILINE)]


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_helm_finds_nothing(values: Path) -> None:
    run(built_tool("helm"), "lint", "--strict", CHART, "--kube-version", KUBERNETES, "--values", values)


SHARED: Final = ("mode=shared", "fleet.name=jobs")


@pytest.mark.parametrize(
    ("wrong", "finding"),
    [
        (["mode=both"], "at '/mode': value must be one of 'sidecar', 'shared'"),
        (["bootstrapServers=broker"], "at '/bootstrapServers': 'broker' does not match pattern"),
        (["shared.replicas=0"], "at '/shared/replicas': minimum: got 0, want 1"),
        (["userId=0"], "at '/userId': minimum: got 0, want 1"),
        (["shared.preStopSeconds=5s"], "at '/shared/preStopSeconds': got string, want integer"),
        (["shared.replicas=two"], "at '/shared/replicas': got string, want integer"),
        (["sidecar.brokerPort=3"], "at '/sidecar': additional properties 'brokerPort' not allowed"),
        (["image.digest=latest"], "at '/image/digest': 'latest' does not match pattern"),
        (["image.pullSecrets[0]=registry"], "at '/image/pullSecrets/0': got string, want object"),
        (["extraArgs[0]=dry-run"], "at '/extraArgs/0': 'dry-run' does not match pattern '^--'"),
        (["extraEnv.PASSWORD=x"], "at '/extraEnv': got object, want array"),
        (["extraEnv[0].value=x"], "at '/extraEnv/0': missing property 'name'"),
        (["extraEnv[0].name=PORT,extraEnv[0].value=5"], "at '/extraEnv/0/value': got number, want string"),
        (["envFrom[0].secret=x"], "at '/envFrom/0': additional properties 'secret' not allowed"),
        (["shared.advertisedHost=proxy:19092"], "at '/shared/advertisedHost': 'proxy:19092' does not match pattern"),
        (["extraVolumeMounts[0].name=x"], "at '/extraVolumeMounts/0': missing property 'mountPath'"),
        (["shared.autoscaling.cpu=80%"], "at '/shared/autoscaling/cpu': '80%' does not match pattern"),
        (["shared.maxConnectionAge=10 minutes"], "at '/shared/maxConnectionAge': '10 minutes' does not match pattern"),
        (["shared.sniHost=*.kafka.example.com"], "at '/shared/sniHost': '*.kafka.example.com' does not match pattern"),
        (["shared.tlsRoute.parentRefs[0].port=1"], "at '/shared/tlsRoute/parentRefs/0': missing property 'name'"),
        (["shared.tlsClientAuth=require"], "at '/shared/tlsClientAuth': value must be one of 'none', 'requested', "),
        (["shared.externalTrafficPolicy=local"], "at '/shared/externalTrafficPolicy': value must be one of 'Cluster'"),
        (["shared.serviceAccount=spark"], "at '/shared/serviceAccount': got string, want object"),
        (["shared.podLabels.team=1"], "at '/shared/podLabels/team': got number, want string"),
        (["networkPolicy.brokerPorts[0]=99999"], "at '/networkPolicy/brokerPorts/0': maximum: got 99,999, want 65,535"),
        (["prometheusRule.docsUrl="], "at '/prometheusRule/docsUrl': '' does not match pattern"),
        (["port=65530"], "the ports of brokers end at 65550: lower port, or the number of brokers' ports"),
        (["port=19400"], "adminPort 19404 is among the ports of clients, 19400 to 19420"),
        (["networkPolicy.enabled=true"], "networkPolicy is for mode shared: for the admin port of sidecars see "),
        (["mode=shared", "shared.replicas=2"], "2 replicas without fleet.name would each allow the whole of every"),
        (["mode=shared", "shared.autoscaling.enabled=true"], "5 replicas without fleet.name would each allow"),
        ([*SHARED, "shared.replicas=9", "fleet.maxMembers=9"], "fleet.maxMembers 9 is less than 9 replicas and the "),
        ([*SHARED, "shared.autoscaling.enabled=true,shared.autoscaling.minReplicas=6"], "6 is more than maxReplicas 5"),
        ([*SHARED, "shared.sniHost=b{node}.example.com"], "shared.sniHost needs shared.tlsSecretName"),
        ([*SHARED, "shared.tlsRoute.parentRefs[0].name=gateway"], "shared.tlsRoute needs shared.sniHost"),
        ([*SHARED, "shared.tlsClientAuth=required"], "shared.tlsClientAuth required needs shared.tlsSecretName"),
        ([*SHARED, "shared.serviceType=NodePort"], "with NodePort these are ports of nodes, 30000 to 32767, not 19092"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_helm_refuses_wrong_values_in_a_line(wrong: list[str], finding: str) -> None:
    flags = [part for each in wrong for part in ("--set", each)]
    told = run(built_tool("helm"), "template", CHART, "--values", VALUES[-1], *flags, code=1)
    [line] = [line for line in told.splitlines() if finding in line]
    reasons = [line for line in told.splitlines() if line.startswith("- at ") or "execution error" in line]
    assert reasons == [line], "nothing else is said"


def test_the_tests_of_the_chart_pass_and_can_fail(tmp_path: Path) -> None:
    count = sum(path.read_text().count("\n  - it: ") for path in (CHART / "tests").glob("*_test.yaml"))
    assert re.search(rf"Tests: +{count} passed, {count} total", run(built_tool("helm-unittest"), CHART))
    wrong = tmp_path / "wrong_test.yaml"
    text = (CHART / "tests/shared_test.yaml").read_text().replace("averageValue: 600m", "averageValue: 700m")
    wrong.write_text(text.replace("../ci", f"{CHART}/ci"))
    run(built_tool("helm-unittest"), "--file", os.path.relpath(wrong, CHART), CHART, code=1)


def with_certificate(arguments: list[str], folder: Path) -> list[str]:
    """The Secret of `tlsSecretName` in a folder in place of its mount, as cert-manager makes it for these arguments."""
    [*hosts] = [each.partition("=")[2] for each in arguments if each.startswith("--advertised-host=")]
    authority = trustme.CA()
    certificate = authority.issue_cert(*(hosts or ["localhost"]), "*.kafka.example.com")
    authority.cert_pem.write_to_path(str(folder / "ca.crt"))
    certificate.private_key_pem.write_to_path(str(folder / "tls.key"))
    certificate.cert_chain_pems[0].write_to_path(str(folder / "tls.crt"))
    return [each.replace("/etc/kafka-quota-proxy/tls", str(folder)) for each in arguments]


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_the_proxys_options_and_the_probes_port(values: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if values.stem.startswith("shared"):
        [pod] = [each["spec"]["template"]["spec"] for each in rendered(values) if each["kind"] == "Deployment"]
        [container] = pod["containers"]
    else:
        container = sidecar_of(values)
    command, *arguments = container["args"]
    assert command == "run"
    files = ("--quotas-file", "--command-config")
    environment = {each["name"]: each.get("value", "") for each in container["env"]}
    known = {variable for option in run_command.params for variable in getattr(option, "variables", ())}
    assert {name for name in environment if name.startswith("KAFKA_QUOTA_PROXY_")} <= known
    arguments = with_certificate(arguments, tmp_path)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = config(*(each for each in arguments if not each.startswith(files)))
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert all(len(name) <= 15 for name in ports)
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        if probe in container:
            assert container[probe]["httpGet"]["port"] in ports, "the API server does not notice it"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert found.observability.metrics_listen == ("::", ports["kqp-admin"])
    assert not any("subPath" in each for each in container["volumeMounts"]), "links that change are not seen through it"
    if values.stem == "shared-sni-values":
        assert set(ports.values()) == {found.listening.address[1], found.observability.metrics_listen[1]}
    elif values.stem.startswith("shared"):
        assert found.listening.broker_ports is not None
        of_clients = [port for name, port in ports.items() if name != "kqp-admin"]
        assert of_clients == [found.listening.address[1], *found.listening.broker_ports]


def test_the_templates_of_spark_have_the_sidecar_of_the_chart() -> None:
    folder = ROOT / "deploy/spark"
    template = yaml.safe_load((folder / "pod-template.yaml").read_text())
    container = yaml.safe_load((folder / "container.yaml").read_text())["spec"]
    assert template["spec"] == {**of_the_chart(), **container}


def of_the_chart() -> dict[str, Any]:
    """The spec of its pod template, with the values of Spark's."""
    [made] = [each for each in rendered(ROOT / "deploy/spark/values.yaml") if each["kind"] == "ConfigMap"]
    return dict(yaml.safe_load(made["data"]["pod-template.yaml"])["spec"])


POD: Final = {
    "initContainers": [{"name": "fetch", "image": "busybox"}],
    "containers": [{"name": "job", "image": "mine"}],
    "volumes": [{"name": "scratch", "emptyDir": {}}],
}


@pytest.mark.parametrize("kind", ["Pod", "Deployment", "Job"])
def test_the_sidecar_of_a_release_is_added_as_its_first_lines_say(tmp_path: Path, kind: str) -> None:
    """Without the chart, a policy or a server: by `kubectl patch --local`."""
    source = ROOT / "deploy/helm/sidecar.yaml"
    assert yaml.safe_load(source.read_text()) == {"spec": of_the_chart()}
    shutil.copy(source, tmp_path)
    named: dict[str, Any] = {"metadata": {"name": "mine"}}
    file = "pod.yaml"
    if kind == "Pod":
        mine = {"apiVersion": "v1", "kind": kind, **named, "spec": POD}
    else:
        template: dict[str, Any] = {"metadata": {"labels": {"app": "mine"}}, "spec": POD}
        spec: dict[str, Any] = {"template": template}
        if kind == "Deployment":
            spec["selector"] = {"matchLabels": {"app": "mine"}}
        else:
            template["spec"] = {**POD, "restartPolicy": "Never"}
        mine = {"apiVersion": "apps/v1" if kind == "Deployment" else "batch/v1", "kind": kind, **named, "spec": spec}
        file = "deployment.yaml"
    (tmp_path / file).write_text(yaml.safe_dump(mine))
    told = [line.removeprefix("#   ") for line in source.read_text().splitlines() if line.startswith("#   ")]
    chosen = [line for line in told if (f"-f {file}" in line or line.startswith("{")) and "apply" not in line]
    [patch] = [line.partition(" | kubectl apply")[0] for line in told if f"-f {file}" in line]
    commands = "\n".join([*chosen, f"{patch} > made.yaml"])
    run("bash", "-euc", f"cd {tmp_path}; PATH={Path(built_tool('kubectl')).parent}:$PATH; {commands}")
    made = yaml.safe_load((tmp_path / "made.yaml").read_text())
    validate(made, SCHEMAS, strict=True)
    pod = made["spec"] if kind == "Pod" else made["spec"]["template"]["spec"]
    assert [each["name"] for each in pod["initContainers"]] == ["kafka-quota-proxy", "fetch"]
    assert pod["initContainers"][0] == of_the_chart()["initContainers"][0]
    assert {each["name"] for each in pod["volumes"]} == {"scratch", "kafka-quota-proxy-quotas"}
    assert pod["containers"] == POD["containers"]


def test_the_example_of_a_login_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files where the chart mounts them, its variables, and a certificate in place of its text."""
    login, password = yaml.safe_load_all((EXAMPLES / "login.yaml").read_text())
    authority = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(authority))
    client_file = tmp_path / "client.properties"
    text = login["stringData"]["client.properties"]
    mounted = "/etc/kafka-quota-proxy/credentials"
    assert f"{mounted}/ca.pem" in text
    client_file.write_text(text.replace(mounted, str(tmp_path)))
    client_file.chmod(0o440)
    for name, value in password["stringData"].items():
        monkeypatch.setenv(name, value)
    chosen = ("--set", "credentials.secretName=kafka-login", "--set", "envFrom[0].secretRef.name=kafka-password")
    container = sidecar_of(VALUES[-1], *chosen)
    assert container["envFrom"] == [{"secretRef": {"name": password["metadata"]["name"]}}]
    assert f"--command-config={mounted}/client.properties" in container["args"]
    found = config("--bootstrap-servers", "broker-1:9093", "--command-config", str(client_file)).upstream
    assert found.login is not None
    assert found.login.username == "quota-proxy"
    monkeypatch.delenv("KAFKA_PASSWORD")
    told = errors("--bootstrap-servers", "broker-1:9093", "--command-config", str(client_file))
    assert "the environment variable KAFKA_PASSWORD is not set" in "\n".join(told)


def test_the_commands_of_the_readme_lead_to_a_pod_with_a_sidecar(tmp_path: Path) -> None:
    """Without a server: from `helm template` to `kubectl patch --local`, as they stand there."""
    blocks = blocks_of((CHART / "README.md").read_text())
    [quotas] = [each for each in blocks if each.startswith("[[quota]]")]
    [commands] = [each for each in blocks if each.startswith("helm template")]
    (tmp_path / "quotas.toml").write_text(quotas)
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "mine"}, "spec": POD}
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump(pod))
    tools = Path(built_tool("helm")).parent
    run("bash", "-euc", f"cd {tmp_path}; PATH={tools}:$PATH; {commands}")
    made = yaml.safe_load((tmp_path / "with-sidecar.yaml").read_text())
    validate(made, SCHEMAS, strict=True)
    assert [each["name"] for each in made["spec"]["initContainers"]] == ["kafka-quota-proxy", "fetch"]
    assert {each["name"] for each in made["spec"]["volumes"]} == {"scratch", "kafka-quota-proxy-quotas"}
    objects = list(yaml.safe_load_all((tmp_path / "kqp.yaml").read_text()))
    assert quotas in [each["data"].get("quotas.toml") for each in objects]


def test_a_chart_of_the_reader_takes_the_sidecar(tmp_path: Path) -> None:
    """As the chart's README says."""
    shutil.copytree(CHART, tmp_path / "charts/kafka-quota-proxy")
    needs = [{"name": "kafka-quota-proxy", "version": "0.1.0", "condition": "kafka-quota-proxy.enabled"}]
    chart = {"apiVersion": "v2", "name": "mine", "version": "0.1.0", "dependencies": needs}
    (tmp_path / "Chart.yaml").write_text(yaml.safe_dump(chart))
    values = tmp_path / "values.yaml"
    given = {"enabled": True, "bootstrapServers": "b:1", "sidecar": {"injection": "template"}}
    values.write_text(yaml.safe_dump({"kafka-quota-proxy": given}))
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates/pod.yaml").write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: mine}\nspec:\n  containers: [{name: job, image: mine}]\n"
        '{{- $of := index .Subcharts "kafka-quota-proxy" }}\n'
        '  initContainers:\n    - {{- include "kafka-quota-proxy.sidecar" $of | nindent 6 }}\n'
        '  volumes: {{- include "kafka-quota-proxy.volumes" $of | nindent 4 }}\n'
    )
    text = run(built_tool("helm"), "template", "x", tmp_path, "--kube-version", KUBERNETES)
    [pod] = [each for each in yaml.safe_load_all(text) if each and each["kind"] == "Pod"]
    validate(pod, SCHEMAS, strict=True)
    assert pod["spec"]["initContainers"][0]["restartPolicy"] == "Always"
    assert [each["name"] for each in pod["spec"]["volumes"]] == ["kafka-quota-proxy-quotas"]
