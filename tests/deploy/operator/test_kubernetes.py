"""The chart against a real API server: strict fields, Pod Security `restricted`, and the sidecar's injection.

What has no scheduler and no kubelet is not tested: probes, the order of starts and ends, pulls.
"""

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.deploy.operator.api_server import ApiServer, Refused
from tests.deploy.operator.cache import ROOT, built_tool, run
from tests.deploy.operator.test_chart import CHART, VALUES, blocks_of, rendered, sidecar_of
from tests.integration.proxy_process import eventually

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(600)]

RESTRICTED: Final = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": 185,
    "seccompProfile": {"type": "RuntimeDefault"},
}
SIDECAR, LOGIN = CHART / "ci/sidecar-values.yaml", CHART / "ci/sidecar-login-values.yaml"


def spark_pod(role: str, **labels: str) -> dict[str, Any]:
    """As Spark 4 makes them for its driver and executors, shortened."""
    volumes = {"emptyDir": {}, "name": "spark-local-dir-1"}
    container = {
        "name": f"spark-kubernetes-{role}",
        "image": "apache/spark:4.0.0",
        "args": [role],
        "env": [{"name": "SPARK_LOCAL_DIRS", "value": "/var/data"}],
        "resources": {"limits": {"memory": "1408Mi"}, "requests": {"cpu": "1", "memory": "1408Mi"}},
        "securityContext": RESTRICTED,
        "volumeMounts": [{"mountPath": "/var/data", "name": "spark-local-dir-1"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": f"job-{role}-", "labels": {"spark-role": role, **labels}},
        "spec": {"restartPolicy": "Never", "containers": [container], "volumes": [volumes]},
    }


ASKS: Final = {"kafka-quota-proxy/inject": "true"}


def sidecars(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in pod["spec"].get("initContainers", ()) if each["name"] == "kafka-quota-proxy"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """With two namespaces that enforce Pod Security `restricted`."""
    with ApiServer(tmp_path_factory.mktemp("api")) as running:
        for name in ("jobs", "others"):
            labels = {"pod-security.kubernetes.io/enforce": "restricted", "kubernetes.io/metadata.name": name}
            metadata = {"name": name, "labels": labels}
            running.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}, keep=True)
        for folder in ("definitions", "published"):
            for file in sorted(Path(built_tool(folder)).iterdir()):
                definition = yaml.safe_load(file.read_text())
                running.create(definition, keep=True)
                place = f"apis/{definition['spec']['group']}/v1/{definition['spec']['names']['plural']}"
                eventually(lambda: is_served(running, place), 60, place)  # noqa: B023
        yield running


def is_served(server: ApiServer, path: str) -> bool:
    try:
        server.request("GET", path)
    except Refused as error:
        if error.status not in (404, 429, 503):
            raise
        return False
    return True


@pytest.fixture(scope="module")
def injecting(server: ApiServer) -> ApiServer:
    """The same, with the chart's policy in force."""
    for each in rendered(SIDECAR):
        server.create(each, keep=True)
    eventually(lambda: sidecars(server.create(spark_pod("driver", **ASKS))), 60, "the policy is in force")
    return server


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_the_server_takes_each_object_and_no_unknown_field(server: ApiServer, values: Path) -> None:
    taken = 0
    for each in rendered(values, "--set", "fullnameOverride=dry-run"):
        server.create(each)
        taken += 1
        wrong = copy.deepcopy(each)
        wrong["metadata"]["lables"] = {}
        with pytest.raises(Refused, match="unknown field"):
            server.create(wrong)
        if each["kind"] == "Deployment":
            pod = {"apiVersion": "v1", "kind": "Pod", **each["spec"]["template"]}
            pod["metadata"]["name"] = "of-deployment"
            server.create(pod)
            pod["spec"]["containers"][0]["securityContext"]["runAsNonRoot"] = False
            pod["spec"]["securityContext"] = {}
            with pytest.raises(Refused, match="violates PodSecurity"):
                server.create(pod)
    assert taken


@pytest.mark.parametrize("values", [SIDECAR, CHART / "ci/shared-values.yaml"], ids=lambda path: path.stem)
def test_objects_of_the_prometheus_operator_are_those_of_its_definitions(server: ApiServer, values: Path) -> None:
    options = ("--set", "podMonitor.enabled=true,podMonitor.labels.release=prometheus")
    [monitor] = [each for each in rendered(values, *options) if each["kind"] == "PodMonitor"]
    server.create(monitor)
    monitor["spec"]["podMetricsEndpoints"][0]["intervall"] = "30s"
    with pytest.raises(Refused, match="unknown field"):
        server.create(monitor)
    del monitor["spec"]["podMetricsEndpoints"][0]["intervall"]
    monitor["spec"]["podMetricsEndpoints"][0]["interval"] = "often"
    with pytest.raises(Refused, match="interval"):
        server.create(monitor)

    docs = "https://git.example/docs"
    options = ("--set", f"prometheusRule.enabled=true,prometheusRule.docsUrl={docs}")
    [rules] = [each for each in rendered(values, *options) if each["kind"] == "PrometheusRule"]
    server.create(rules)
    shipped = (CHART / "files/rules.yaml").read_text().replace("runbook_url: docs", f"runbook_url: {docs}")
    assert rules["spec"] == yaml.safe_load(shipped)
    rule = rules["spec"]["groups"][1]["rules"][0]
    rule["form"] = rule.pop("for")
    with pytest.raises(Refused, match="unknown field"):
        server.create(rules)


def test_the_server_takes_the_examples(server: ApiServer) -> None:
    for file in sorted((ROOT / "deploy/helm/examples").iterdir()):
        for each in yaml.safe_load_all(file.read_text()):
            server.create(each)
            wrong = copy.deepcopy(each)
            wrong["spect"] = wrong.pop("spec", {})
            with pytest.raises(Refused, match="unknown field"):
                server.create(wrong)


def test_only_monitoring_reaches_the_admin_port_of_sidecars() -> None:
    """As a network plugin reads the example: a port is open to all, or to some, or to nobody."""
    policy = yaml.safe_load((ROOT / "deploy/helm/examples/admin-port.yaml").read_text())
    to_all, to_some = policy["spec"]["ingress"]
    assert "from" not in to_all
    admin = yaml.safe_load((CHART / "values.yaml").read_text())["adminPort"]
    tcp = [range(each["port"], each["endPort"] + 1) for each in to_all["ports"] if each["protocol"] == "TCP"]
    assert set(range(1, 65_536)).difference(*tcp) == {admin}
    assert [each["port"] for each in to_some["ports"]] == [admin]
    assert policy["spec"]["podSelector"]["matchLabels"] == ASKS


@pytest.mark.parametrize("role", ["driver", "executor"])
def test_a_pod_of_spark_gets_the_sidecar_first(injecting: ApiServer, role: str) -> None:
    pod = spark_pod(role, **ASKS)
    other = {"name": "fetch", "image": "busybox", "securityContext": RESTRICTED}
    with_init = copy.deepcopy(pod)
    with_init["spec"]["initContainers"] = [other]
    del with_init["spec"]["volumes"]
    del with_init["spec"]["containers"][0]["volumeMounts"]
    expected = sidecar_of(SIDECAR)
    for asked in (pod, with_init):
        made = injecting.create(asked)
        names = [each["name"] for each in made["spec"]["initContainers"]]
        assert names == ["kafka-quota-proxy", *(each["name"] for each in asked["spec"].get("initContainers", ()))]
        [container] = sidecars(made)
        assert (container["restartPolicy"], container["args"]) == ("Always", expected["args"])
        assert [each["name"] for each in container["env"]] == [each["name"] for each in expected["env"]]
        assert container["securityContext"] == expected["securityContext"]
        assert container["resources"] == expected["resources"]
        for probe in ("startupProbe", "livenessProbe"):
            assert expected[probe].items() <= {**container[probe], "httpGet": expected[probe]["httpGet"]}.items()
            assert container[probe]["httpGet"]["path"] == expected[probe]["httpGet"]["path"]
        volumes = {each["name"]: each for each in made["spec"]["volumes"]}
        assert volumes["kafka-quota-proxy-quotas"]["configMap"]["name"] == "kqp-kafka-quota-proxy-quotas"
        assert len(volumes) == len(asked["spec"].get("volumes", ())) + 1


def test_the_five_steps_of_the_readme_lead_to_a_pod_whose_sidecar_logs_in(server: ApiServer, tmp_path: Path) -> None:
    """As they stand there."""
    page = (CHART / "README.md").read_text()
    [make] = re.findall("`(kubectl create .+?)`", page)
    [apply] = re.findall("`(kubectl apply .+? -f login.yaml)`", page)
    blocks = blocks_of(page)
    [install] = [each for each in blocks if each.startswith("helm install") and "credentials" in each]
    [quotas] = [each for each in blocks if each.startswith("[[quota]]")]
    (tmp_path / "quotas.toml").write_text(quotas)
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    (tmp_path / "login.yaml").symlink_to(ROOT / "deploy/helm/examples/login.yaml")
    within = f"cd {tmp_path}; export PATH={Path(built_tool('helm')).parent}:$PATH KUBECONFIG={server.kubeconfig}; "
    for command in (make, apply, install):
        run("bash", "-euc", within + re.sub(r"(namespace|--namespace) jobs", r"\1 steps", command))
    pod = spark_pod("driver", **ASKS)
    eventually(lambda: sidecars(server.create(pod, "steps")), 60, "the policy is in force")
    [container] = sidecars(server.create(pod, "steps"))
    assert "--command-config=/etc/kafka-quota-proxy/credentials/client.properties" in container["args"]
    [password] = [each["secretRef"]["name"] for each in container["envFrom"]]
    assert "KAFKA_PASSWORD" in server.request("GET", f"api/v1/namespaces/steps/secrets/{password}")["data"]


def test_the_commands_of_the_readme_for_a_sidecar_lead_to_a_pod_with_one(server: ApiServer, tmp_path: Path) -> None:
    """As they stand there, in a namespace that helm makes."""
    blocks = blocks_of((CHART / "README.md").read_text())
    [quotas] = [each for each in blocks if each.startswith("[[quota]]")]
    [install] = [each for each in blocks if each.startswith("helm install") and "--create-namespace" in each]
    [ask] = [each for each in blocks if each.startswith("kubectl run")]
    (tmp_path / "quotas.toml").write_text(quotas)
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    within = f"cd {tmp_path}; export PATH={Path(built_tool('helm')).parent}:$PATH KUBECONFIG={server.kubeconfig}; "
    shown = run("bash", "-euc", within + install.replace("--namespace jobs", "--namespace readme"))
    assert "STATUS: deployed" in shown
    ask = within + ask.replace("--namespace jobs", "--namespace readme")
    eventually(lambda: run("bash", "-euc", ask) == "kafka-quota-proxy", 60, "the policy is in force")
    assert run("bash", "-euc", ask.replace("inject=true", "inject=false")) == ""
    kept = server.request("GET", "api/v1/namespaces/readme/configmaps/kqp-kafka-quota-proxy-quotas")
    assert kept["data"] == {"quotas.toml": quotas}


@pytest.mark.parametrize("own", [[], [{"name": "of-the-job"}]], ids=["none", "of its own"])
def test_a_sidecar_brings_what_it_needs_of_the_pod(server: ApiServer, own: list[dict[str, str]]) -> None:
    """Variables and volumes of the values, and the Secret by which its image is pulled."""
    namespace = f"logs-in-{len(own)}"
    server.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}, keep=True)
    for each in rendered(LOGIN, "--namespace", namespace):
        server.create(each, namespace, keep=True)
    pod = spark_pod("driver", **ASKS)
    pod["spec"] |= {"imagePullSecrets": own} if own else {}
    eventually(lambda: sidecars(server.create(pod, namespace)), 60, "the policy is in force")
    made = server.create(pod, namespace)
    assert made["spec"]["imagePullSecrets"] == [*own, {"name": "registry"}]
    [container] = sidecars(made)
    assert {"name": "companys-ca", "mountPath": "/etc/company", "readOnly": True} in container["volumeMounts"]
    [password] = [each for each in container["env"] if each["name"] == "KAFKA_PASSWORD"]
    assert password["valueFrom"] == {"secretKeyRef": {"name": "kafka-password", "key": "password"}}
    assert container["envFrom"] == [{"configMapRef": {"name": "proxies", "optional": True}}]
    assert {"companys-ca", "kafka-quota-proxy-credentials"} <= {each["name"] for each in made["spec"]["volumes"]}


def test_who_does_not_get_it(injecting: ApiServer) -> None:
    assert not sidecars(injecting.create(spark_pod("driver")))
    assert not sidecars(injecting.create(spark_pod("driver", **{"kafka-quota-proxy/inject": "false"})))
    assert not sidecars(injecting.create(spark_pod("driver", **ASKS), "others"))
    made = injecting.create(spark_pod("driver", **ASKS))
    again = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "again", "labels": ASKS}, "spec": made["spec"]}
    assert len(sidecars(injecting.create(again))) == 1


def test_a_sidecar_with_rights_would_be_refused(injecting: ApiServer) -> None:
    made = injecting.create(spark_pod("driver", **ASKS))
    sidecars(made)[0]["securityContext"]["capabilities"]["drop"] = []
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "more"}, "spec": made["spec"]}
    with pytest.raises(Refused, match="violates PodSecurity"):
        injecting.create(pod)


def test_a_policy_that_is_wrong_is_refused(server: ApiServer) -> None:
    objects = rendered(LOGIN, "--set", "fullnameOverride=wrong")
    [policy] = [each for each in objects if each["kind"] == "MutatingAdmissionPolicy"]
    server.create(policy)
    policy["spec"]["mutations"][0]["jsonPatch"]["expression"] += ", variables.nothing"
    with pytest.raises(Refused, match="expression"):
        server.create(policy)
