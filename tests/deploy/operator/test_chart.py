"""The chart by helm, its own tests, the schemas of Kubernetes, and the options that the proxy really has.

Against a real API server: `tests/deploy/operator/test_kubernetes.py`.
"""

from __future__ import annotations

import os
import re
import shutil
import textwrap
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from kubernetes_validate import ValidationError, validate

from proxy.commands import run as run_command
from tests.deploy.operator.cache import ROOT, built_tool, run
from tests.proxy.command_line import config

CHART: Final = ROOT / "deploy/helm/kafka-quota-proxy"
VALUES: Final = sorted((CHART / "ci").glob("*-values.yaml"))
KUBERNETES: Final = "1.36.3"
SCHEMAS: Final = "1.36"

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
    container: dict[str, Any] = found
    return container


def blocks_of(page: str) -> list[str]:
    """What is indented in a page: its commands and files."""
    return [textwrap.dedent(each) for each in re.findall(r"(?:^    .*\n)+", page, flags=re.MULTILINE)]


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_helm_finds_nothing(values: Path) -> None:
    run(built_tool("helm"), "lint", "--strict", CHART, "--kube-version", KUBERNETES, "--values", values)


@pytest.mark.parametrize(
    ("wrong", "finding"),
    [
        ("mode=both", "mode"),
        ("bootstrapServers=broker", "bootstrapServers"),
        ("shared.replicas=0", "replicas"),
        ("sidecar.brokerPort=3", "brokerPort"),
        ("image.digest=latest", "digest"),
        ("extraArgs[0]=dry-run", "extraArgs"),
    ],
)
def test_helm_refuses_wrong_values(wrong: str, finding: str) -> None:
    told = run(built_tool("helm"), "lint", "--strict", CHART, "--values", VALUES[0], "--set", wrong, code=1)
    assert finding in told


def test_the_tests_of_the_chart_pass_and_can_fail(tmp_path: Path) -> None:
    assert re.search(r"Tests: +10 passed, 10 total", run(built_tool("helm-unittest"), CHART))
    wrong = tmp_path / "wrong_test.yaml"
    text = (CHART / "tests/shared_test.yaml").read_text().replace("--quota-share=0.25", "--quota-share=0.5")
    wrong.write_text(text.replace("../ci", f"{CHART}/ci"))
    run(built_tool("helm-unittest"), "--file", os.path.relpath(wrong, CHART), CHART, code=1)


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_objects_are_those_of_kubernetes(values: Path) -> None:
    kinds = []
    for each in rendered(values):
        kinds.append(each["kind"])
        if each["kind"] != "PodMonitor":
            validate(each, SCHEMAS, strict=True)
    expected = ["Deployment", "PodDisruptionBudget", "Service"] if "shared" in values.stem else []
    assert set(expected) <= set(kinds)


def test_the_schemas_notice_a_key_that_is_not_there() -> None:
    [deployment] = [each for each in rendered(VALUES[0], "--set", "mode=shared") if each["kind"] == "Deployment"]
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    container["readynessProbe"] = container.pop("readinessProbe")
    with pytest.raises(ValidationError):
        validate(deployment, SCHEMAS, strict=True)


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_the_proxy_has_the_options_and_the_probes_their_port(values: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if values.stem.startswith("shared"):
        [pod] = [each["spec"]["template"]["spec"] for each in rendered(values) if each["kind"] == "Deployment"]
        [container] = pod["containers"]
    else:
        container = sidecar_of(values)
    command, *arguments = container["args"]
    assert command == "run"
    files = ("--quotas-file", "--command-config", "--ssl-")
    environment = {each["name"]: each.get("value", "") for each in container["env"]}
    known = {variable for option in run_command.params for variable in getattr(option, "variables", ())}
    assert environment.keys() <= known
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = config(*(each for each in arguments if not each.startswith(files)))
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert all(len(name) <= 15 for name in ports)
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        if probe in container:
            assert container[probe]["httpGet"]["port"] in ports, "the API server does not notice it"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert found.observability.metrics_listen == ("0.0.0.0", ports["kqp-admin"])  # noqa: S104
    assert not any("subPath" in each for each in container["volumeMounts"]), (
        "a link that changes is not seen through it"
    )
    if values.stem.startswith("shared"):
        assert found.listening.broker_ports is not None
        assert sorted(ports.values())[:-1] == [found.listening.address[1], *found.listening.broker_ports]


def test_the_templates_of_spark_have_the_sidecar_of_the_chart() -> None:
    folder = ROOT / "deploy/spark"
    template = yaml.safe_load((folder / "pod-template.yaml").read_text())
    [made] = [each for each in rendered(folder / "values.yaml") if each["kind"] == "ConfigMap"]
    expected = yaml.safe_load(made["data"]["pod-template.yaml"])["spec"]
    container = yaml.safe_load((folder / "container.yaml").read_text())["spec"]
    assert template["spec"] == {**expected, **container}


def test_the_commands_of_the_readme_lead_to_a_pod_with_a_sidecar(tmp_path: Path) -> None:
    """Without a server: from `helm template` to `kubectl patch --local`, as they stand there."""
    blocks = blocks_of((CHART / "README.md").read_text())
    [quotas] = [each for each in blocks if each.startswith("[[quota]]")]
    [commands] = [each for each in blocks if each.startswith("helm template")]
    (tmp_path / "quotas.toml").write_text(quotas)
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "mine"},
        "spec": {
            "initContainers": [{"name": "fetch", "image": "busybox"}],
            "containers": [{"name": "job", "image": "mine"}],
            "volumes": [{"name": "scratch", "emptyDir": {}}],
        },
    }
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
    needs = [{"name": "kafka-quota-proxy", "version": "0.1.0"}]
    chart = {"apiVersion": "v2", "name": "mine", "version": "0.1.0", "dependencies": needs}
    (tmp_path / "Chart.yaml").write_text(yaml.safe_dump(chart))
    values = tmp_path / "values.yaml"
    values.write_text(
        yaml.safe_dump({"kafka-quota-proxy": {"bootstrapServers": "b:1", "sidecar": {"injection": "template"}}})
    )
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
