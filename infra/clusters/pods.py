"""Pods that dask-kubernetes' operator starts, with TLS between them: a class, as Dask's own are. Needs `kubernetes`."""

from __future__ import annotations

import asyncio
import base64
import os
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dask.config
from distributed import Status
from distributed.security import Security

from infra.clusters.encryption import contents_of, settings_of
from infra.clusters.keywords import Keywords
from infra.clusters.remote import IDLE_SECONDS, nest_settings
from infra.sizes import size_in_bytes
from tasks.errors import GiveUpError, JobError

if TYPE_CHECKING:
    from kr8s.objects import APIObject

CERTIFICATES = "/etc/rowmill-tls"
PORT = 8786


@dataclass
class Pods:
    """What the pods of a cluster ask for, and what runs in them.

    `worker_arguments` are words of the workers' command, `dask_settings` Dask's settings for all processes.
    """

    image: str
    cores: float
    memory: str
    gpus: int = 0
    namespace: str | None = None
    service_account: str | None = None
    volumes: dict[str, str] = field(default_factory=dict)
    shared_memory: str = "8GiB"
    node_selector: dict[str, str] = field(default_factory=dict)
    tolerations: list[dict[str, Any]] = field(default_factory=list)
    template: dict[str, Any] = field(default_factory=dict)
    n_workers: int = 1
    security: Security | None = None
    protocol: str = "tls://"
    scheduler_options: Keywords = field(default_factory=dict)
    worker_arguments: list[str] = field(default_factory=list)
    dask_settings: Keywords = field(default_factory=dict)
    start_timeout: int = 300

    def resource(self, name: str, namespace: str) -> dict[str, Any]:
        """The DaskCluster: the spec of dask-kubernetes, with encryption, GPUs, shared memory and the data's volumes.

        With a dashboard it answers inside the scheduler's pod only: `kubectl port-forward deploy/NAME-scheduler 8787`.
        """
        from dask_kubernetes.operator import make_cluster_spec

        pods = -(-self.n_workers // max(1, self.gpus))
        spec: dict[str, Any] = make_cluster_spec(name, image=self.image, n_workers=pods, idle_timeout=IDLE_SECONDS)
        spec["metadata"] |= {"namespace": namespace, "labels": {"app.kubernetes.io/part-of": "rowmill"}}
        protocol = self.protocol.partition("://")[0]
        files = {part: f"{CERTIFICATES}/{part}.pem" for part in ("ca", "cert", "key")}
        settings = self.dask_settings | (settings_of(files) if self.security else {})
        variables = [
            {"name": "DASK_INTERNAL_INHERIT_CONFIG", "value": dask.config.serialize(nest_settings(settings))},
            {"name": "DASK_SCHEDULER_ADDRESS", "value": f"{protocol}://{name}-scheduler.{namespace}.svc:{PORT}"},
        ]
        worker = spec["spec"]["worker"]["spec"]
        self._fill(worker, self._worker_command(protocol), variables, self._quantities(), name)
        worker["containers"][0].pop("ports")
        scheduler = spec["spec"]["scheduler"]["spec"]
        small = {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "8Gi"}}
        self._fill(scheduler, self._scheduler_command(protocol), variables[:1], small, name)
        container = scheduler["containers"][0]
        container["ports"] = [{"name": "tcp-comm", "containerPort": PORT, "protocol": "TCP"}]
        container["readinessProbe"] = {"tcpSocket": {"port": "tcp-comm"}, "periodSeconds": 2}
        container["livenessProbe"] = {"tcpSocket": {"port": "tcp-comm"}, "initialDelaySeconds": 15, "periodSeconds": 20}
        service = spec["spec"]["scheduler"]["service"]
        service["ports"] = [port for port in service["ports"] if port["name"] == "tcp-comm"]
        return {**spec, "spec": _overlay_values(spec["spec"], self.template)}

    def _worker_command(self, protocol: str) -> list[str]:
        """Return the command of a worker, which has the threads of the job, else one for each core."""
        threads = [] if "--nthreads" in self.worker_arguments else ["--nthreads", str(max(1, int(self.cores)))]
        return [
            "dask",
            *(["cuda"] if self.gpus else []),
            "worker",
            "--name",
            "$(DASK_WORKER_NAME)",
            "--protocol",
            protocol,
            "--memory-limit",
            str(size_in_bytes(self.memory, 0) // max(1, self.gpus)),
            *threads,
            *self.worker_arguments,
        ]

    def _scheduler_command(self, protocol: str) -> list[str]:
        return [
            "dask",
            "scheduler",
            "--protocol",
            protocol,
            "--port",
            str(PORT),
            "--dashboard" if self.scheduler_options.get("dashboard") else "--no-dashboard",
            "--dashboard-address",
            "127.0.0.1:8787",
        ]

    def _quantities(self) -> dict[str, Any]:
        """What the pod of a worker requests, and what it may have at most."""
        quantities = {"cpu": f"{self.cores:g}", "memory": str(size_in_bytes(self.memory, 0))}
        gpus = {"nvidia.com/gpu": str(self.gpus)} if self.gpus else {}
        return {"requests": quantities, "limits": quantities | gpus}

    def _fill(
        self,
        pod: dict[str, Any],
        arguments: list[str],
        variables: list[dict[str, str]],
        resources: dict[str, Any],
        name: str,
    ) -> None:
        """Return a pod's container and what it mounts: /dev/shm, the volumes of the data, the certificates."""
        mounts: list[dict[str, Any]] = [{"name": "shm", "mountPath": "/dev/shm"}]
        size = str(size_in_bytes(self.shared_memory, 0))
        volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": size}}]
        for claim, path in self.volumes.items():
            mounts.append({"name": claim, "mountPath": path})
            volumes.append({"name": claim, "persistentVolumeClaim": {"claimName": claim}})
        if self.security:
            mounts.append({"name": "tls", "mountPath": CERTIFICATES, "readOnly": True})
            volumes.append({"name": "tls", "secret": {"secretName": f"{name}-tls", "defaultMode": 0o440}})
        pod["containers"][0] |= {
            "args": arguments,
            "env": variables,
            "resources": resources,
            "volumeMounts": mounts,
            "securityContext": {"allowPrivilegeEscalation": False},
        }
        pod["volumes"] = volumes
        pod["securityContext"] = {"runAsNonRoot": True, "fsGroup": 1000}
        if self.service_account:
            pod["serviceAccountName"] = self.service_account
        if self.node_selector:
            pod["nodeSelector"] = dict(self.node_selector)
        if self.tolerations:
            pod["tolerations"] = list(self.tolerations)


@dataclass
class PodCluster(Pods):
    """A DaskCluster resource with its certificates, which runs when this returns; closing it deletes both.

    GiveUpError if it does not start, JobError if Kubernetes refuses it.
    """

    def __post_init__(self) -> None:
        from kr8s.objects import Secret

        self.status = Status.created
        self.name = f"rowmill-{uuid.uuid4().hex[:10]}"
        self._resource: Any = None
        with _errors_explained():
            api = _api()
            self.namespace = self.namespace or str(api.namespace)
            dask_cluster = _dask_cluster()(self.resource(self.name, self.namespace), api=api)
            dask_cluster.create()
            self._resource = dask_cluster
            # Pods wait for the secret, which goes with its owner, also after a flow that was killed.
            if self.security:
                Secret(secret(self.name, self.namespace, _texts(self.security), dask_cluster.raw), api=api).create()
            scheduler = _wait_for_scheduler(dask_cluster, self.name, self.namespace, self.start_timeout)
        self.scheduler_address = f"{self.protocol.partition('://')[0]}://{scheduler}"
        self.status = Status.running

    def what_holds_up(self) -> str:
        """Return the cluster's pods in words."""
        return _pods(self.name, str(self.namespace))

    def close(self) -> None:
        """Delete the resource, and with it pods and certificates."""
        self.status = Status.closed
        if self._resource is not None:
            self._resource.delete()
            self._resource = None


def _overlay_values(ours: Any, own: Any) -> Any:
    """The values of `own` over ours: maps by their keys, lists of containers, variables, volumes and mounts by the name
    or path of an entry; all else is replaced."""
    if isinstance(ours, dict) and isinstance(own, dict):
        return ours | {key: _overlay_values(ours.get(key), value) for key, value in own.items()}
    if isinstance(ours, list) and isinstance(own, list):
        keys = [entry.get("mountPath", entry.get("name")) if isinstance(entry, dict) else None for entry in ours + own]
        if None not in keys:
            entries = dict(zip(keys, ours, strict=False))
            own_entries = dict(zip(keys[len(ours) :], own, strict=True))
            return [*_overlay_values(entries, own_entries).values()]
    return own


def _texts(security: Security) -> dict[str, str]:
    """Certificates for the pods: temporary ones, or those of the files here."""
    role = security.get_tls_config_for_role("worker")
    files = {"ca": role["ca_file"], "cert": role["cert"], "key": role["key"]}
    return contents_of(security) or {part: Path(path).read_text() for part, path in files.items()}


def secret(name: str, namespace: str, texts: dict[str, str], owner: dict[str, Any]) -> dict[str, Any]:
    """Return the certificates for the pods, as a Secret that is deleted with the DaskCluster `owner`."""
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"]}
    reference |= {key: owner["metadata"][key] for key in ("name", "uid")}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {"name": f"{name}-tls", "namespace": namespace, "ownerReferences": [reference]},
        "data": {f"{key}.pem": base64.b64encode(text.encode()).decode() for key, text in texts.items()},
    }


def _wait_for_scheduler(dask_cluster: APIObject, name: str, namespace: str, seconds: int) -> str:
    """Wait for the operator and return host:port of the scheduler; forwarded if this process is not in the cluster."""
    deadline = time.monotonic() + seconds
    while True:
        dask_cluster.refresh()
        if dask_cluster.raw.get("status", {}).get("phase") == "Running":
            break
        if time.monotonic() > deadline:
            raise GiveUpError(
                "the operator has not started the scheduler",
                where=f"DaskCluster {namespace}/{name}",
                why=_pods(name, namespace) or "it made no pod",
                do="check the image, and that the operator of "
                "dask-kubernetes runs (helm install --repo https://helm.dask.org .. dask-kubernetes-operator)",
            )
        time.sleep(1)
    from dask_kubernetes.operator.networking import get_scheduler_address

    with ThreadPoolExecutor(1) as thread:  # a loop of its own, also where this thread has one
        address = thread.submit(lambda: asyncio.run(get_scheduler_address(f"{name}-scheduler", namespace))).result()
    return str(address).partition("://")[2]


def _pods(name: str, namespace: str) -> str:
    """Return the cluster's pods in words: name, phase, and what a container waits for."""
    from kr8s.objects import Pod

    with _errors_explained():
        pods = _api().get(Pod, namespace=namespace, label_selector=f"dask.org/cluster-name={name}")
    return "; ".join(f"{pod.name}: {pod.raw['status'].get('phase')}{_reason(pod.raw['status'])}" for pod in pods)


def _reason(status: dict[str, Any]) -> str:
    waiting = [c.get("state", {}).get("waiting", {}).get("reason") for c in status.get("containerStatuses", [])]
    unmet = [c.get("message") for c in status.get("conditions", []) if c.get("status") == "False"]
    reasons = [text for text in [*waiting, *unmet] if text]
    return f" ({reasons[0]})" if reasons else ""


def _dask_cluster() -> type[APIObject]:
    from kr8s.objects import new_class

    return new_class("DaskCluster", "kubernetes.dask.org/v1", asyncio=False)


def _api() -> Any:
    import kr8s

    return kr8s.api(kubeconfig=os.environ.get("KUBECONFIG"))


@contextmanager
def _errors_explained() -> Iterator[None]:
    """Turn errors of Kubernetes into errors that say what to do."""
    import httpx
    import kr8s

    try:
        yield
    except kr8s.ServerError as error:
        raise JobError(
            "Kubernetes refuses the cluster",
            where="cluster.kubernetes",
            why=str(error),
            do="install dask-kubernetes' operator; give the flow's account the rights of infra/manifests/worker.yaml",
        ) from None
    except (httpx.HTTPError, kr8s.APITimeoutError, ConnectionError, ValueError) as error:
        raise GiveUpError(
            "Kubernetes does not answer",
            where="cluster.kind = kubernetes",
            why=f"{type(error).__name__}: {error}",
            do="`kubectl get daskclusters` must work here: check the kubeconfig, or run inside the cluster",
        ) from None
