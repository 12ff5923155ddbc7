"""A real kube-apiserver with etcd on loopback: no scheduler, no kubelet, no controllers."""

import http.client
import json
import os
import secrets
import socket
import ssl
import subprocess
import urllib.parse
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import trustme
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.deploy.operator.cache import built_tool
from tests.integration.proxy_process import eventually

#: Where objects of a kind are, below the namespace where they have one.
PLACES = {
    "ConfigMap": "api/v1/{}/configmaps",
    "Service": "api/v1/{}/services",
    "Pod": "api/v1/{}/pods",
    "ServiceAccount": "api/v1/{}/serviceaccounts",
    "Deployment": "apis/apps/v1/{}/deployments",
    "PodDisruptionBudget": "apis/policy/v1/{}/poddisruptionbudgets",
    "NetworkPolicy": "apis/networking.k8s.io/v1/{}/networkpolicies",
    "Role": "apis/rbac.authorization.k8s.io/v1/{}/roles",
    "RoleBinding": "apis/rbac.authorization.k8s.io/v1/{}/rolebindings",
    "Namespace": "api/v1/namespaces",
    "PrometheusRule": "apis/monitoring.coreos.com/v1/{}/prometheusrules",
    "HorizontalPodAutoscaler": "apis/autoscaling/v2/{}/horizontalpodautoscalers",
    "Secret": "api/v1/{}/secrets",
    "TLSRoute": "apis/gateway.networking.k8s.io/v1/{}/tlsroutes",
    "Certificate": "apis/cert-manager.io/v1/{}/certificates",
    "PodMonitor": "apis/monitoring.coreos.com/v1/{}/podmonitors",
    "CustomResourceDefinition": "apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "MutatingAdmissionPolicy": "apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": "apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings",
}


class Refused(Exception):
    """The status of the server, and its message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class ApiServer:
    """Ready on entry. `kubeconfig` is of an administrator, `kubeconfig_of_spark` of the account `spark` in `jobs`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._token = secrets.token_hex(16)
        authority = trustme.CA()
        self._authority = folder / "ca.pem"
        authority.cert_pem.write_to_path(str(self._authority))
        certificate = authority.issue_cert("127.0.0.1", "localhost", "kubernetes.default.svc")
        certificate.private_key_and_cert_chain_pem.write_to_path(str(folder / "server.pem"))
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        encoding, none = serialization.Encoding.PEM, serialization.NoEncryption()
        private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, none)
        (folder / "accounts.pem").write_bytes(private)
        account = ["system:serviceaccount:jobs:spark", "spark", '"system:serviceaccounts,system:serviceaccounts:jobs"']
        of_spark = secrets.token_hex(16)
        tokens = f"{self._token},admin,admin,system:masters\n{','.join([of_spark, *account])}\n"
        (folder / "tokens.csv").write_text(tokens)
        self._etcd, self._peer, self.port = (self._free_port() for _ in range(3))
        self.url = f"https://127.0.0.1:{self.port}"
        self.kubeconfig = self._config("admin", self._token)
        self.kubeconfig_of_spark = self._config("spark", of_spark)

    def _config(self, user: str, token: str) -> Path:
        cluster = {"server": self.url, "certificate-authority": str(self._authority)}
        context = {"cluster": "test", "user": user, "namespace": "jobs"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "test", "context": context}],
        }
        path = self._folder / f"kubeconfig-{user}"
        path.write_text(yaml.safe_dump(config))
        return path

    @staticmethod
    def _free_port() -> int:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port: int = free.getsockname()[1]
            return port

    def _start(self, name: str, *arguments: str) -> None:
        with (self._folder / f"{name}.log").open("w") as log:
            self._processes.append(subprocess.Popen([built_tool(name), *arguments], stdout=log, stderr=log))

    def __enter__(self) -> Self:
        folder, etcd, peer = self._folder, f"http://127.0.0.1:{self._etcd}", f"http://127.0.0.1:{self._peer}"
        try:
            self._start(
                "etcd", f"--data-dir={folder / 'etcd'}",
                f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}",
                f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}", "--unsafe-no-fsync",
            )  # fmt: skip
            self._start(
                "kube-apiserver", f"--etcd-servers={etcd}", f"--secure-port={self.port}", "--bind-address=127.0.0.1",
                f"--tls-cert-file={folder / 'server.pem'}", f"--tls-private-key-file={folder / 'server.pem'}",
                f"--token-auth-file={folder / 'tokens.csv'}", "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={folder / 'accounts.pem'}",
                f"--service-account-signing-key-file={folder / 'accounts.pem'}", "--authorization-mode=RBAC",
                "--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none",
                "--service-cluster-ip-range=10.0.0.0/24", f"--cert-dir={folder}",
            )  # fmt: skip
            eventually(self._is_ready, 180, "the API server is ready")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()
            process.wait()

    def _is_ready(self) -> bool:
        assert all(process.poll() is None for process in self._processes), "it ended: see its log"
        try:
            self.request("GET", "readyz")
        except (OSError, Refused):
            os.sched_yield()
            return False
        return True

    def request(self, method: str, path: str, body: object = None, **query: str) -> Any:
        """The answer, parsed where it is JSON. Raises Refused, and OSError."""
        context = ssl.create_default_context(cafile=str(self._authority))
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=context, timeout=60)
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind}
        try:
            target = f"/{path}?{urllib.parse.urlencode(query)}"
            connection.request(method, target, json.dumps(body) if body is not None else None, headers)
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        if response.status >= 400:
            with suppress(ValueError, KeyError):
                text = json.loads(text)["message"]
            raise Refused(response.status, text)
        return json.loads(text) if text.startswith("{") else text

    def create(self, what: dict[str, Any], namespace: str = "jobs", *, keep: bool = False) -> dict[str, Any]:
        """Create an object, as a dry run unless `keep`; returns it as the server has it. Unknown fields are errors."""
        place = PLACES[what["kind"]].format(f"namespaces/{namespace}")
        query = {"fieldValidation": "Strict"} | ({} if keep else {"dryRun": "All"})
        return dict(self.request("POST", place, what, **query))

    def allows(self, verb: str, resource: str, namespace: str = "jobs") -> bool:
        """Whether the account `spark` may do that, as `kubectl auth can-i` asks."""
        groups = ["system:serviceaccounts", "system:serviceaccounts:jobs", "system:authenticated"]
        attributes = {"namespace": namespace, "verb": verb, "resource": resource}
        spec = {"user": "system:serviceaccount:jobs:spark", "groups": groups, "resourceAttributes": attributes}
        asked = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        found = self.request("POST", "apis/authorization.k8s.io/v1/subjectaccessreviews", asked)
        return bool(found["status"]["allowed"])
