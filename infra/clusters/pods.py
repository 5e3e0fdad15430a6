"""The kind `kubernetes`: scheduler and workers as pods, by dask-kubernetes' operator. Needs the extra `kubernetes`."""

from __future__ import annotations

import asyncio
import base64
import os
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dask.config

from infra.clusters.encryption import contents_of, protocol_of, security_of
from infra.clusters.model import Kubernetes, first_workers
from infra.clusters.remote import (
    IDLE_SECONDS,
    RunningCluster,
    library,
    nested,
    worker_arguments,
    worker_settings,
)
from infra.sizes import size_in_bytes
from infra.workers.imports import NO_IMPORTS, WorkerImports
from tasks.errors import GiveUpError, JobError

if TYPE_CHECKING:
    from distributed.security import Security
    from kr8s.objects import APIObject

    from infra.clusters.model import Cluster

CERTIFICATES, PORT = "/etc/rowmill-tls", 8786


def open_pods(opened: RunningCluster, cluster: Cluster, imports: WorkerImports) -> None:
    """Create a DaskCluster resource with its certificates; closing deletes both. GiveUpError if it does not start."""
    section = cluster.kubernetes
    assert section is not None
    library("dask_kubernetes.operator", "dask-kubernetes", "kubernetes")
    from kr8s.objects import Secret

    security, name = security_of(cluster), f"rowmill-{uuid.uuid4().hex[:10]}"
    opened.security = security
    with _errors_explained():
        api = _api()
        namespace = section.namespace or api.namespace
        dask_cluster = _dask_cluster()(resource(cluster, name, namespace, security, imports), api=api)
        dask_cluster.create()
        opened.on_close.append(dask_cluster.delete)
        if security:  # pods wait for the secret; it goes when its owner goes, also after a flow that was killed
            Secret(secret(name, namespace, _texts(cluster, security), dask_cluster.raw), api=api).create()
        scheduler = _wait_for_scheduler(dask_cluster, name, namespace, cluster.start_timeout)
    opened.scheduler_address = f"{protocol_of(cluster, security)}://{scheduler}"
    opened.delay = partial(_pods, name, namespace)


def resource(
    cluster: Cluster, name: str, namespace: str, security: Security | None, imports: WorkerImports = NO_IMPORTS
) -> dict[str, Any]:
    """The DaskCluster: the spec of dask-kubernetes, with encryption, GPUs, shared memory and the volumes of the data.

    With `cluster.dashboard` it answers inside the scheduler's pod only: `kubectl port-forward deploy/NAME-scheduler
    8787`.
    """
    section = cluster.kubernetes
    assert section is not None
    from dask_kubernetes.operator import make_cluster_spec

    processes = max(1, section.gpus)
    pods = -(-first_workers(cluster) // processes)
    spec: dict[str, Any] = make_cluster_spec(name, image=section.image, n_workers=pods, idle_timeout=IDLE_SECONDS)
    spec["metadata"] |= {"namespace": namespace, "labels": {"app.kubernetes.io/part-of": "rowmill"}}
    protocol = protocol_of(cluster, security)
    files = {part: f"{CERTIFICATES}/{part}.pem" for part in ("ca", "cert", "key")} if security else None
    settings = worker_settings(cluster, section.gpus, files, imports)
    variables = [
        {"name": "DASK_INTERNAL_INHERIT_CONFIG", "value": dask.config.serialize(nested(settings))},
        {"name": "DASK_SCHEDULER_ADDRESS", "value": f"{protocol}://{name}-scheduler.{namespace}.svc:{PORT}"},
    ]
    memory = size_in_bytes(section.memory, 0)
    threads = ["--nthreads", str(max(1, int(section.cores)))]
    arguments = [
        "dask",
        *(["cuda"] if section.gpus else []),
        "worker",
        "--name",
        "$(DASK_WORKER_NAME)",
        "--protocol",
        protocol,
        "--memory-limit",
        str(memory // processes),
        *([] if cluster.threads_per_worker or section.gpus else threads),
        *worker_arguments(cluster, section.gpus, imports, "memory_limit", "interface"),
    ]
    quantities = {"cpu": f"{section.cores:g}", "memory": str(memory)}
    limits = quantities | ({"nvidia.com/gpu": str(section.gpus)} if section.gpus else {})
    worker = spec["spec"]["worker"]["spec"]
    _fill(worker, section, arguments, variables, {"requests": quantities, "limits": limits}, security, name)
    worker["containers"][0].pop("ports")
    scheduler = spec["spec"]["scheduler"]["spec"]
    arguments = [
        "dask",
        "scheduler",
        "--protocol",
        protocol,
        "--port",
        str(PORT),
        "--dashboard" if cluster.dashboard else "--no-dashboard",
        "--dashboard-address",
        "127.0.0.1:8787",
    ]
    small = {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "8Gi"}}
    _fill(scheduler, section, arguments, variables[:1], small, security, name)
    container = scheduler["containers"][0]
    container["ports"] = [{"name": "tcp-comm", "containerPort": PORT, "protocol": "TCP"}]
    container["readinessProbe"] = {"tcpSocket": {"port": "tcp-comm"}, "periodSeconds": 2}
    container["livenessProbe"] = {"tcpSocket": {"port": "tcp-comm"}, "initialDelaySeconds": 15, "periodSeconds": 20}
    service = spec["spec"]["scheduler"]["service"]
    service["ports"] = [port for port in service["ports"] if port["name"] == "tcp-comm"]
    return {**spec, "spec": _laid_over(spec["spec"], section.template)}


def _laid_over(ours: Any, own: Any) -> Any:
    """The values of `own` over ours: maps by their keys, lists of containers, variables, volumes and mounts by the name
    or path of an entry; all else is replaced."""
    if isinstance(ours, dict) and isinstance(own, dict):
        return ours | {key: _laid_over(ours.get(key), value) for key, value in own.items()}
    if isinstance(ours, list) and isinstance(own, list):
        keys = [entry.get("mountPath", entry.get("name")) if isinstance(entry, dict) else None for entry in ours + own]
        if None not in keys:
            entries = dict(zip(keys, ours, strict=False))
            own_entries = dict(zip(keys[len(ours) :], own, strict=True))
            return [*_laid_over(entries, own_entries).values()]
    return own


def _fill(
    pod: dict[str, Any],
    section: Kubernetes,
    arguments: list[str],
    variables: list[dict[str, str]],
    resources: dict[str, Any],
    security: Security | None,
    name: str,
) -> None:
    """A pod's container and what it mounts: /dev/shm, the volumes of the data, the certificates."""
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    volumes: list[dict[str, Any]] = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(size_in_bytes(section.shared_memory, 0))}}
    ]
    for claim, path in section.volumes.items():
        mounts.append({"name": claim, "mountPath": path})
        volumes.append({"name": claim, "persistentVolumeClaim": {"claimName": claim}})
    if security:
        mounts.append({"name": "tls", "mountPath": CERTIFICATES, "readOnly": True})  # type: ignore[dict-item]
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
    if section.service_account:
        pod["serviceAccountName"] = section.service_account
    if section.node_selector:
        pod["nodeSelector"] = dict(section.node_selector)
    if section.tolerations:
        pod["tolerations"] = list(section.tolerations)


def _texts(cluster: Cluster, security: Security) -> dict[str, str]:
    """Certificates for the pods: temporary ones, or those of the files here."""
    files = cluster.tls.model_dump() if cluster.tls else {}
    return contents_of(security) or {part: Path(path).read_text() for part, path in files.items()}


def secret(name: str, namespace: str, texts: dict[str, str], owner: dict[str, Any]) -> dict[str, Any]:
    """The certificates for the pods, as a Secret that is deleted with the DaskCluster `owner`."""
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
    """The cluster's pods in words: name, phase, and what a container waits for."""
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
