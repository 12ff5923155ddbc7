"""A stand-in for scheduler and kubelet: pods of the API server become processes of this machine.

For each pod it does what a kubelet would, in that order: makes the files of ConfigMaps, starts the native sidecar with
the pod's own arguments and variables, asks its startup probe, starts Spark's process as the image's entry point does,
ends the sidecar after it, and writes the status. All pods share the host's network: one pod with a sidecar at a time.
"""

import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pyspark

from deploy.local.java import find_java
from tests.deploy.operator.api_server import ApiServer, Refused

SPARK_HOME = Path(pyspark.__file__).parent
EXECUTOR = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
NOW = "2026-01-01T00:00:00Z"


class Kubelet:
    """Runs the executors of a namespace while the block lasts."""

    def __init__(self, server: ApiServer, folder: Path, namespace: str = "jobs") -> None:
        self._server = server
        self._folder = folder
        self._place = f"api/v1/namespaces/{namespace}"
        self._threads: list[threading.Thread] = []
        self._is_over = threading.Event()
        self._watch = threading.Thread(target=self._run)
        self.ended: dict[str, tuple[int, int]] = {}
        """Exit codes of Spark's process and of the sidecar, by the name of the pod."""
        self.order: list[str] = []
        """What happened, in order."""
        self.metrics: dict[str, str] = {}
        """The last metrics of each sidecar, by the name of the pod."""

    def __enter__(self) -> Self:
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in (self._watch, *self._threads):
            thread.join(60)

    def _run(self) -> None:
        seen: set[str] = set()
        while not self._is_over.wait(0.3):
            with suppress(OSError, Refused):
                executors = self._server.request("GET", f"{self._place}/pods", labelSelector="spark-role=executor")
                for pod in executors["items"]:
                    name = pod["metadata"]["name"]
                    if name not in seen and "deletionTimestamp" not in pod["metadata"]:
                        seen.add(name)
                        self._threads.append(threading.Thread(target=self._run_pod, args=(pod,)))
                        self._threads[-1].start()

    def _run_pod(self, pod: dict[str, Any]) -> None:
        name = pod["metadata"]["name"]
        target = {"apiVersion": "v1", "kind": "Node", "name": "here"}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        self._server.request("POST", f"{self._place}/pods/{name}/binding", binding)
        folder = self._folder / name
        [spec] = [each for each in pod["spec"]["initContainers"] if each.get("restartPolicy") == "Always"]
        arguments = self._with_files(pod, spec, folder)
        with (folder / "sidecar.log").open("w") as log:
            sidecar = subprocess.Popen(
                [str(Path(sys.executable).with_name("kafka-quota-proxy")), *arguments],
                env=_environment(pod, spec), stderr=log,
            )  # fmt: skip
        self.order.append("sidecar started")
        spark = None
        try:
            port = spec["ports"][0]["containerPort"]
            self._wait_for(f"http://127.0.0.1:{port}{spec['startupProbe']['httpGet']['path']}", sidecar)
            self.order.append("sidecar ready")
            spark = self._start_spark(pod, folder)
            self.order.append("spark started")
            self._report(name, "Running", None)
            while spark.poll() is None and not self._is_over.wait(0.2):
                self._scrape(name, port)
            if spark.poll() is None:
                spark.terminate()
            code = spark.wait(60)
            before = self.metrics.get(name)
            while sidecar.poll() is None and self.metrics.get(name) == before:  # a page is kept for a second
                self._scrape(name, port)
                self._is_over.wait(0.1)
            self.order.append("spark ended")
        finally:
            if spark is not None and spark.poll() is None:
                spark.kill()
            sidecar.send_signal(signal.SIGTERM)
            last = sidecar.wait(60)
            self.order.append("sidecar ended")
        self.ended[name] = code, last
        with suppress(Refused):  # Spark deletes its executors
            self._report(name, "Succeeded" if code == 0 else "Failed", code)

    def _scrape(self, name: str, port: int) -> None:
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
            self.metrics[name] = page.read().decode()

    def _with_files(self, pod: dict[str, Any], container: dict[str, Any], folder: Path) -> list[str]:
        """The arguments, with the folders of volumes where this machine has them."""
        volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
        arguments = container["args"]
        folder.mkdir(parents=True)
        for mount in container["volumeMounts"]:
            if "configMap" not in (volume := volumes[mount["name"]]):
                continue
            data = self._server.request("GET", f"{self._place}/configmaps/{volume['configMap']['name']}")["data"]
            place = folder / mount["name"]
            place.mkdir()
            for key, text in data.items():
                (place / key).write_text(text)
            arguments = [each.replace(mount["mountPath"], str(place)) for each in arguments]
        return list(arguments)

    def _wait_for(self, url: str, process: subprocess.Popen[bytes]) -> None:
        while True:
            assert process.poll() is None, "the sidecar ended"
            assert not self._is_over.is_set(), "it was not ready in time"
            with suppress(OSError), urllib.request.urlopen(url, timeout=5):  # noqa: S310 - http
                return
            time.sleep(0.1)

    def _start_spark(self, pod: dict[str, Any], folder: Path) -> subprocess.Popen[bytes]:
        """The executor, as `entrypoint.sh` of Spark's image starts it."""
        [container] = pod["spec"]["containers"]
        environment = _environment(pod, container)
        options = [value for name, value in sorted(environment.items()) if name.startswith("SPARK_JAVA_OPT_")]
        command = [
            find_java(), *options, "-cp", f"{SPARK_HOME}/jars/*", EXECUTOR,
            "--driver-url", environment["SPARK_DRIVER_URL"], "--executor-id", environment["SPARK_EXECUTOR_ID"],
            "--cores", environment["SPARK_EXECUTOR_CORES"], "--app-id", environment["SPARK_APPLICATION_ID"],
            "--hostname", "127.0.0.1", "--resourceProfileId", environment["SPARK_RESOURCE_PROFILE_ID"],
            "--podName", pod["metadata"]["name"],
        ]  # fmt: skip
        environment |= {"SPARK_LOCAL_DIRS": str(folder), "SPARK_HOME": str(SPARK_HOME), "PATH": os.environ["PATH"]}
        with (folder / "spark.log").open("w") as log:
            return subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log)

    def _report(self, name: str, phase: str, code: int | None) -> None:
        """Write the status that Spark reads."""
        running = {"running": {"startedAt": NOW}}
        state = running if code is None else {"terminated": {"exitCode": code, "startedAt": NOW, "finishedAt": NOW}}
        pod = self._server.request("GET", f"{self._place}/pods/{name}")
        described = [
            {"name": each["name"], "image": each["image"], "imageID": "", "ready": code is None, "restartCount": 0,
             "started": code is None, "state": state}
            for each in pod["spec"]["containers"]
        ]  # fmt: skip
        status = {"status": {"phase": phase, "podIP": "127.0.0.1", "containerStatuses": described}}
        self._server.request("PATCH", f"{self._place}/pods/{name}/status", status)


def _environment(pod: dict[str, Any], container: dict[str, Any]) -> dict[str, str]:
    """The variables of a container; references to fields of the pod are resolved."""
    found: dict[str, str] = {}
    for each in container.get("env", ()):
        path = each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        if path is None:
            found[each["name"]] = each.get("value", "")
        elif path.startswith("metadata.annotations['"):
            key = path.removeprefix("metadata.annotations['").removesuffix("']")
            found[each["name"]] = pod["metadata"].get("annotations", {}).get(key, "")
        elif path == "metadata.name":
            found[each["name"]] = pod["metadata"]["name"]
        else:
            found[each["name"]] = "127.0.0.1"  # status.podIP
    return found
