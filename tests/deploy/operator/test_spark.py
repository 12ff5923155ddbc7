"""spark-submit against a real API server, with deploy/spark's own configuration.

In client mode executors are pods that a stand-in for the kubelet runs, with their injected sidecar, and they write to a
real broker. In cluster mode only the driver's pod is looked at.
"""

import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from confluent_kafka import Consumer, TopicPartition

from deploy.local import artifacts
from deploy.local.cluster import KafkaCluster
from tests.conftest import UniqueName
from tests.deploy.operator.api_server import ApiServer
from tests.deploy.operator.cache import ROOT
from tests.deploy.operator.kubelet import SPARK_HOME, Kubelet
from tests.deploy.operator.test_chart import CHART, rendered, sidecar_of
from tests.deploy.operator.test_kubernetes import RESTRICTED, server, sidecars
from tests.integration.proxy_process import eventually
from tests.integration.topics import create_topics

__all__ = ["server"]
pytestmark = [pytest.mark.deploy, pytest.mark.timeout(600)]

FOLDER: Final = ROOT / "deploy/spark"
PORT: Final = 29592
ADMIN: Final = 29704
RATE: Final = 5_000_000
#: Of deploy/spark/spark-defaults.conf.
SHARE: Final = 0.1
ROWS, ROW_BYTES = 4_000, 1_000
JOB: Final = f"""
import sys
from pyspark.sql import SparkSession
rows = SparkSession.builder.getOrCreate().range({ROWS})
rows = rows.selectExpr("cast(id as string) as key", "repeat('x', {ROW_BYTES}) as value")
rows.write.format("kafka").option("kafka.bootstrap.servers", sys.argv[1]).option("topic", sys.argv[2]).save()
"""


def submit(server: ApiServer, kubeconfig: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """spark-submit, with deploy/spark/spark-defaults.conf, from its folder."""
    chosen = {"spark.kubernetes.container.image": "spark:test", "spark.ui.enabled": "false"}
    chosen |= {"spark.executor.instances": "1", "spark.executor.memory": "512m", **settings}
    return subprocess.run(
        [str(SPARK_HOME / "bin/spark-submit"), "--master", f"k8s://{server.url}",
         "--properties-file", str(FOLDER / "spark-defaults.conf"),
         *(part for name, value in chosen.items() for part in ("--conf", f"{name}={value}")), *arguments],
        cwd=FOLDER,
        env={**os.environ, "KUBECONFIG": str(kubeconfig), "SPARK_HOME": str(SPARK_HOME)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=400,
    )  # fmt: skip


@pytest.fixture(scope="module")
def options(kafka_cluster: KafkaCluster) -> list[str]:
    """Values of the chart: that broker, and ports of this test."""
    ports = f"port={PORT},adminPort={ADMIN},sidecar.brokerPorts=3"
    quotas = f'quotas=[[quota]]\nclient-id = "flights-etl"\nproducer_byte_rate = {RATE}\n'
    servers = f"bootstrapServers={kafka_cluster.bootstrap_servers}"
    return ["--set", ports, "--set", servers, "--set-literal", quotas]


@pytest.fixture(scope="module")
def with_broker(server: ApiServer, options: list[str]) -> ApiServer:
    """The chart and the account of drivers in force."""
    account = yaml.safe_load_all((FOLDER / "rbac.yaml").read_text())
    for each in (*rendered(CHART / "ci/sidecar-values.yaml", *options), *account):
        server.create(each, keep=True)
    probe: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "probe", "labels": {"kafka-quota-proxy/inject": "true"}},
        "spec": {"containers": [{"name": "one", "image": "none", "securityContext": RESTRICTED}]},
    }
    eventually(lambda: sidecars(server.create(probe)), 60, "the policy is in force")
    return server


@pytest.mark.parametrize("client_id", ["flights-etl", "not-limited"])
def test_an_executor_writes_through_its_sidecar_within_its_share(
    with_broker: ApiServer, kafka_cluster: KafkaCluster, unique_name: UniqueName, tmp_path: Path, client_id: str
) -> None:
    """The driver has the rights of its account alone."""
    topic = unique_name("k8s")
    create_topics(kafka_cluster, topic)
    job = tmp_path / "job.py"
    job.write_text(JOB)
    begun = time.monotonic()
    with Kubelet(with_broker, tmp_path / "pods") as kubelet:
        annotation = "spark.kubernetes.executor.annotation.kafka-quota-proxy"
        settings = dict.fromkeys(("spark.driver.host", "spark.driver.bindAddress"), "127.0.0.1")
        settings |= {f"{annotation}/client-id": client_id, f"{annotation}/quota-share": str(SHARE)}
        arguments = ("--deploy-mode", "client", "--jars", artifacts.spark_jars(), str(job), f"127.0.0.1:{PORT}", topic)
        done = submit(with_broker, with_broker.kubeconfig_of_spark, *arguments, **settings)
        took = time.monotonic() - begun
        logs = "\n".join(path.read_text()[-2000:] for path in (tmp_path / "pods").rglob("*.log"))
        assert done.returncode == 0, done.stdout[-4000:] + logs
        eventually(lambda: kubelet.ended, 60, "the pod's end")
    consumer = Consumer({"bootstrap.servers": kafka_cluster.bootstrap_servers, "group.id": topic})
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
    consumer.close()
    assert high - low == ROWS

    assert kubelet.order == ["sidecar started", "sidecar ready", "spark started", "spark ended", "sidecar ended"]
    [codes] = kubelet.ended.values()
    assert codes == (0, 0)
    [metrics] = kubelet.metrics.values()
    sent = re.search(rf'bytes_total\{{client_id="{client_id}",direction="produce",user="ANONYMOUS"\}} (\S+)', metrics)
    assert sent, "the annotation names the client"
    assert float(sent[1]) >= ROWS * ROW_BYTES, "all of it went through the sidecar"
    if client_id != "flights-etl":
        assert f'client_id="{client_id}",limit=' not in metrics, "no limit applies, and nothing was held"
        return
    assert f'client_id="{client_id}",limit="producer_byte_rate"' in metrics, "it was held"
    # The limit of its fleet, which has no other member; its part of it went back when the job ended.
    limit = re.search(r'fleet_quota\{entity="client-id:flights-etl",limit="producer_byte_rate"\} (\S+)', metrics)
    assert limit
    assert float(limit[1]) == RATE * SHARE, "the annotation scales the rate"
    one_request = 1_048_576
    assert took >= (ROWS * ROW_BYTES - RATE * SHARE - one_request) / (RATE * SHARE), "it was held"


def test_what_the_account_of_drivers_may_do(with_broker: ApiServer) -> None:
    pods = ("create", "get", "list", "watch", "delete", "deletecollection")
    allowed = {(verb, "pods") for verb in pods} | {("create", "services")}
    allowed |= {(verb, "configmaps") for verb in ("create", "get")}
    assert {each for each in allowed if not with_broker.allows(*each)} == set()
    changes = ("update", "patch", "delete", "deletecollection")
    denied = {(verb, "configmaps") for verb in changes} | {
        ("get", "secrets"), ("create", "pods/exec"), ("update", "pods"), ("create", "rolebindings"),
        ("create", "mutatingadmissionpolicies"), ("get", "nodes"),
    }  # fmt: skip
    assert {each for each in denied if with_broker.allows(*each)} == set()
    assert not with_broker.allows("create", "pods", "others")


def driver_of_cluster_mode(server: ApiServer, name: str, **options: str) -> Any:
    """The pod of a driver of that name, submitted with these options besides."""
    done = submit(
        server, server.kubeconfig, "--deploy-mode", "cluster", "--name", "job",
        "--class", "org.apache.spark.examples.SparkPi",
        "local:///opt/spark/examples.jar",
        **{
            "spark.kubernetes.submission.waitAppCompletion": "false",
            "spark.kubernetes.driver.pod.name": name,
            **options,
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    return server.request("GET", f"api/v1/namespaces/jobs/pods/{name}")


def test_a_driver_without_the_label_has_no_sidecar(with_broker: ApiServer) -> None:
    unlabelled = {"spark.kubernetes.driver.label.kafka-quota-proxy/inject": "false"}
    pod = driver_of_cluster_mode(with_broker, "driver-without", **unlabelled)
    assert (sidecars(pod), pod["spec"]["serviceAccountName"]) == ([], "spark")


@pytest.mark.parametrize("template", ["container.yaml", "pod-template.yaml"])
def test_the_driver_in_cluster_mode_has_one_sidecar(with_broker: ApiServer, options: list[str], template: str) -> None:
    name = f"driver-{template.partition('.')[0]}"
    pod = driver_of_cluster_mode(with_broker, name, **{"spark.kubernetes.driver.podTemplateFile": template})
    [container] = sidecars(pod)
    assert container["restartPolicy"] == "Always"
    assert container["startupProbe"]["httpGet"]["path"] == "/readyz"
    if template == "container.yaml":
        expected = sidecar_of(CHART / "ci/sidecar-values.yaml", *options)
    else:  # it was there before the policy
        expected = sidecar_of(FOLDER / "values.yaml")
    assert container["args"] == expected["args"]
    assert {each["name"] for each in container["volumeMounts"]} <= {each["name"] for each in pod["spec"]["volumes"]}
