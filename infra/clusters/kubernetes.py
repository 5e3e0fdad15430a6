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
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dask.config

from infra.clusters.encryption import contents_of, protocol_of, security_of
from infra.clusters.model import Kubernetes
from infra.clusters.remote import (
    IDLE_SECONDS,
    RunningCluster,
    library,
    nested,
    wait_for_workers,
    worker_arguments,
    worker_settings,
)
from infra.sizes import size_in_bytes
from infra.workers.imports import NO_IMPORTS, WorkerImports
from tasks.errors import GiveUpError, JobError

if TYPE_CHECKING:
    from distributed.security import Security

    from infra.clusters.model import Cluster

CERTIFICATES, PORT = "/etc/millrace-tls", 8786


def start(cluster: Cluster, imports: WorkerImports = NO_IMPORTS) -> RunningCluster:
    """A DaskCluster resource with its certificates; closing deletes both. GiveUpError when nothing comes of it."""
    asked = cluster.kubernetes
    assert asked is not None
    library("dask_kubernetes.operator", "dask-kubernetes", "kubernetes")
    from kr8s.objects import Secret

    security, name = security_of(cluster), f"millrace-{uuid.uuid4().hex[:10]}"
    with _said():
        api = _api()
        namespace = asked.namespace or api.namespace
        made = _dask_cluster()(resource(cluster, name, namespace, security, imports), api=api)
        made.create()
        opened = RunningCluster("", security, [made.delete])
        try:
            if security:  # pods wait for the secret; it goes when its owner goes, also after a flow that was killed
                Secret(secret(name, namespace, _texts(cluster, security), made.raw), api=api).create()
            scheduler = _wait_for_scheduler(made, name, namespace, cluster.start_timeout)
            opened.scheduler_address = f"{protocol_of(cluster, security)}://{scheduler}"
            wanted = (cluster.workers or max(1, asked.gpus)) if cluster.workers or asked.gpus else 1
            wait_for_workers(opened, wanted, cluster, lambda: _pods(name, namespace))
        except BaseException:
            opened.close()
            raise
    return opened


def resource(
    cluster: Cluster, name: str, namespace: str, security: Security | None, imports: WorkerImports = NO_IMPORTS
) -> dict[str, Any]:
    """The DaskCluster: the spec of dask-kubernetes, with encryption, GPUs, shared memory and the volumes of the data.

    The dashboard answers inside the scheduler's pod only: `kubectl port-forward deploy/NAME-scheduler 8787`.
    """
    asked = cluster.kubernetes
    assert asked is not None
    from dask_kubernetes.operator import make_cluster_spec

    processes = max(1, asked.gpus)
    pods = -(-(cluster.workers or 1) // processes)
    made: dict[str, Any] = make_cluster_spec(name, image=asked.image, n_workers=pods, idle_timeout=IDLE_SECONDS)
    made["metadata"] |= {"namespace": namespace, "labels": {"app.kubernetes.io/part-of": "millrace"}}
    protocol = protocol_of(cluster, security)
    files = {part: f"{CERTIFICATES}/{part}.pem" for part in ("ca", "cert", "key")} if security else None
    settings = worker_settings(cluster, asked.gpus, files, imports)
    variables = [
        {"name": "DASK_INTERNAL_INHERIT_CONFIG", "value": dask.config.serialize(nested(settings))},
        {"name": "DASK_SCHEDULER_ADDRESS", "value": f"{protocol}://{name}-scheduler.{namespace}.svc:{PORT}"},
    ]
    memory = size_in_bytes(asked.memory, 0)
    arguments = ["dask", *(["cuda"] if asked.gpus else []), "worker", "--name", "$(DASK_WORKER_NAME)",
                 "--protocol", protocol, "--no-dashboard", "--memory-limit", str(memory // processes),
                 *([] if cluster.threads_per_worker or asked.gpus else ["--nthreads", str(max(1, int(asked.cores)))]),
                 *worker_arguments(cluster, asked.gpus, imports, "memory_limit", "interface")]  # fmt: skip
    quantities = {"cpu": f"{asked.cores:g}", "memory": str(memory)}
    limits = quantities | ({"nvidia.com/gpu": str(asked.gpus)} if asked.gpus else {})
    worker = made["spec"]["worker"]["spec"]
    _fill(worker, asked, arguments, variables, {"requests": quantities, "limits": limits}, security, name)
    worker["containers"][0].pop("ports")
    scheduler = made["spec"]["scheduler"]["spec"]
    arguments = ["dask", "scheduler", "--protocol", protocol, "--port", str(PORT),
                 "--dashboard-address", "127.0.0.1:8787"]  # fmt: skip
    small = {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "8Gi"}}
    _fill(scheduler, asked, arguments, variables[:1], small, security, name)
    container = scheduler["containers"][0]
    container["ports"] = [{"name": "tcp-comm", "containerPort": PORT, "protocol": "TCP"}]
    container["readinessProbe"] = {"tcpSocket": {"port": "tcp-comm"}, "periodSeconds": 2}
    container["livenessProbe"] = {"tcpSocket": {"port": "tcp-comm"}, "initialDelaySeconds": 15, "periodSeconds": 20}
    service = made["spec"]["scheduler"]["service"]
    service["ports"] = [port for port in service["ports"] if port["name"] == "tcp-comm"]
    return made


def _fill(pod: dict[str, Any], asked: Kubernetes, arguments: list[str], variables: list[dict[str, str]],
          resources: dict[str, Any], security: Security | None, name: str) -> None:  # fmt: skip
    """A pod's container and what it mounts: /dev/shm, the volumes of the data, the certificates."""
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    volumes: list[dict[str, Any]] = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(size_in_bytes(asked.shared_memory, 0))}}
    ]
    for claim, path in asked.volumes.items():
        mounts.append({"name": claim, "mountPath": path})
        volumes.append({"name": claim, "persistentVolumeClaim": {"claimName": claim}})
    if security:
        mounts.append({"name": "tls", "mountPath": CERTIFICATES, "readOnly": True})  # type: ignore[dict-item]
        volumes.append({"name": "tls", "secret": {"secretName": f"{name}-tls", "defaultMode": 0o440}})
    pod["containers"][0] |= {"args": arguments, "env": variables, "resources": resources, "volumeMounts": mounts,
                             "securityContext": {"allowPrivilegeEscalation": False}}  # fmt: skip
    pod["volumes"] = volumes
    pod["securityContext"] = {"runAsNonRoot": True, "fsGroup": 1000}
    if asked.service_account:
        pod["serviceAccountName"] = asked.service_account
    if asked.node_selector:
        pod["nodeSelector"] = dict(asked.node_selector)
    if asked.tolerations:
        pod["tolerations"] = list(asked.tolerations)


def _texts(cluster: Cluster, security: Security) -> dict[str, str]:
    """Certificates for the pods: temporary ones, or those of the files here."""
    files = cluster.tls.model_dump() if cluster.tls else {}
    return contents_of(security) or {part: Path(path).read_text() for part, path in files.items()}


def secret(name: str, namespace: str, texts: dict[str, str], owner: dict[str, Any]) -> dict[str, Any]:
    """The certificates for the pods, as a Secret that is deleted with the DaskCluster `owner`."""
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"]}
    reference |= {key: owner["metadata"][key] for key in ("name", "uid")}
    return {
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": {"name": f"{name}-tls", "namespace": namespace, "ownerReferences": [reference]},
        "data": {f"{key}.pem": base64.b64encode(text.encode()).decode() for key, text in texts.items()},
    }  # fmt: skip


def _wait_for_scheduler(made: Any, name: str, namespace: str, seconds: int) -> str:
    """host:port of the scheduler once the operator has made its service; forwarded if this is not in the cluster."""
    deadline = time.monotonic() + seconds
    while True:
        made.refresh()
        if made.raw.get("status", {}).get("phase") == "Running":
            break
        if time.monotonic() > deadline:
            raise GiveUpError(
                "the operator has not started the scheduler", where=f"DaskCluster {namespace}/{name}",
                why=_pods(name, namespace) or "it made no pod", do="check the image, and that the operator of "
                "dask-kubernetes runs (helm install --repo https://helm.dask.org .. dask-kubernetes-operator)",
            )  # fmt: skip
        time.sleep(1)
    from dask_kubernetes.operator.networking import get_scheduler_address

    with ThreadPoolExecutor(1) as thread:  # a loop of its own, also where this thread has one
        address = thread.submit(lambda: asyncio.run(get_scheduler_address(f"{name}-scheduler", namespace))).result()
    return str(address).partition("://")[2]


def _pods(name: str, namespace: str) -> str:
    """What Kubernetes says of the cluster's pods: name, phase, and what a container waits for."""
    from kr8s.objects import Pod

    found = _api().get(Pod, namespace=namespace, label_selector=f"dask.org/cluster-name={name}")
    return "; ".join(f"{pod.name}: {pod.raw['status'].get('phase')}{_reason(pod.raw['status'])}" for pod in found)


def _reason(status: dict[str, Any]) -> str:
    waiting = [c.get("state", {}).get("waiting", {}).get("reason") for c in status.get("containerStatuses", [])]
    unmet = [c.get("message") for c in status.get("conditions", []) if c.get("status") == "False"]
    said = [text for text in [*waiting, *unmet] if text]
    return f" ({said[0]})" if said else ""


def _dask_cluster() -> Any:
    from kr8s.objects import new_class

    return new_class("DaskCluster", "kubernetes.dask.org/v1", asyncio=False)


def _api() -> Any:
    import kr8s

    return kr8s.api(kubeconfig=os.environ.get("KUBECONFIG"))


@contextmanager
def _said() -> Iterator[None]:
    """What Kubernetes refuses as errors that say what to do."""
    import httpx
    import kr8s

    try:
        yield
    except kr8s.ServerError as error:
        raise JobError(
            "Kubernetes refuses the cluster", where="cluster.kubernetes", why=str(error),
            do="install dask-kubernetes' operator; give the flow's account the rights of infra/manifests/worker.yaml",
        ) from None  # fmt: skip
    except (httpx.HTTPError, kr8s.APITimeoutError, ConnectionError, ValueError) as error:
        raise GiveUpError(
            "Kubernetes does not answer", where="cluster.kind = kubernetes", why=f"{type(error).__name__}: {error}",
            do="`kubectl get daskclusters` must work here: check the kubeconfig, or run inside the cluster",
        ) from None  # fmt: skip
