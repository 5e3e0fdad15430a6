"""The kind `kubernetes`: the resource against its CRD, and a run where a small API server plays Kubernetes' part."""

from __future__ import annotations

import base64
import gc
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import dask.config
import pytest
import yaml
from distributed import Client
from pydantic import ValidationError

from infra.clusters import by_class, pods, resolve
from infra.clusters.encryption import security_of
from infra.clusters.model import Cluster
from infra.clusters.remote import worker_settings
from tasks.errors import GiveUpError, JobError
from tasks.manifest import Manifest
from tests.clusters import IMPORTS, make_cluster
from tests.conftest import free_port
from tests.faults.jobs import BLOCK, make_data
from tests.infra.elsewhere import digests, eventually, fork_dask, run_job

dask_kubernetes = pytest.importorskip("dask_kubernetes", reason="needs dask-kubernetes: pip install '.[test]'")
jsonschema = pytest.importorskip("jsonschema")
pytestmark = [
    pytest.mark.xdist_group("clusters"),
    # kr8s is cut off while it opens the file, where a cluster of Dask's class does not start.
    pytest.mark.filterwarnings("ignore:unclosed file .*kubeconfig:ResourceWarning"),
]
KINDS = "/apis/kubernetes.dask.org/v1/namespaces/data/daskclusters"
ASKED = {"image": "rowmill:cuda", "cores": 8, "memory": "64GiB", "gpus": 2, "namespace": "data",
         "volumes": {"lake": "/data"}, "service_account": "dask", "node_selector": {"gpu": "h200"},
         "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}  # fmt: skip


def schema() -> dict[str, Any]:
    """What the API server checks a DaskCluster against: the CRD that dask-kubernetes ships."""
    crds = Path(dask_kubernetes.__file__).parent / "operator/deployment/helm/dask-kubernetes-operator/crds"
    crd = yaml.load((crds / "daskcluster.yaml").read_text(), yaml.CSafeLoader)
    found: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


@pytest.fixture(scope="module")
def crd() -> Any:
    return jsonschema.Draft202012Validator(schema())


def made(cluster: Cluster) -> dict[str, Any]:
    settings = {"dask_settings": worker_settings(cluster, cluster.gpus, imports=IMPORTS)}
    arguments = by_class._arguments(cluster, pods.Pods, "", IMPORTS, security_of(cluster)) | settings
    return pods.Pods(**arguments).resource("rowmill-1", "data")


def test_the_resource_is_what_the_crd_takes(crd: Any) -> None:
    resource = made(Cluster(kind="kubernetes", workers=5, kubernetes=ASKED, resources={"transform": {"GPU": 1}}))
    assert [error.message for error in crd.iter_errors(resource)] == []
    worker = resource["spec"]["worker"]
    pod, (container,) = worker["spec"], worker["spec"]["containers"]
    assert worker["replicas"] == 3  # five worker processes, two in a pod
    assert container["image"] == "rowmill:cuda"
    assert container["args"] == [
        "dask", "cuda", "worker", "--name", "$(DASK_WORKER_NAME)", "--protocol", "tls",
        "--memory-limit", str(32 * 2**30), "--nthreads", "8",
        "--no-dashboard", "--dashboard-address", "127.0.0.1:0",
        "--device-memory-limit", "0.45", "--set-rmm-allocator-for-libs", "cupy",
        "--pre-import", "cudf,cupy,infra.workers.gpu_preload,tasks.cluster.transfer.gpu_worker,infra.workers.preimport",
        "--resources", "GPU=1",
    ]  # fmt: skip
    assert container["resources"] == {
        "requests": {"cpu": "8", "memory": str(64 * 2**30)},
        "limits": {"cpu": "8", "memory": str(64 * 2**30), "nvidia.com/gpu": "2"},
    }
    assert pod["volumes"] == [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(8 * 2**30)}},
        {"name": "lake", "persistentVolumeClaim": {"claimName": "lake"}},
        {"name": "tls", "secret": {"secretName": "rowmill-1-tls", "defaultMode": 0o440}},
    ]
    assert [(mount["name"], mount["mountPath"]) for mount in container["volumeMounts"]] == [
        ("shm", "/dev/shm"), ("lake", "/data"), ("tls", "/etc/rowmill-tls"),
    ]  # fmt: skip
    more = made(Cluster(kind="kubernetes", kubernetes={**ASKED, "shared_memory": "1GiB"}))
    assert more["spec"]["worker"]["spec"]["volumes"][0]["emptyDir"]["sizeLimit"] == str(2**30)
    assert (pod["serviceAccountName"], pod["nodeSelector"]) == ("dask", {"gpu": "h200"})
    assert pod["tolerations"] == ASKED["tolerations"]


@pytest.mark.promise("`kubernetes.template` is laid over the pods")
def test_a_template_is_laid_over_the_pods(crd: Any) -> None:
    mount = {"name": "lake", "mountPath": "/more", "subPath": "a"}
    worker = {
        "metadata": {"annotations": {"team": "shop"}},
        "spec": {
            "priorityClassName": "night",
            "tolerations": [{"key": "spot", "operator": "Exists"}],
            "initContainers": [{"name": "warm", "image": "busybox", "command": ["true"]}],
            "containers": [
                {"name": "worker", "volumeMounts": [mount],
                 "env": [{"name": "TZ", "value": "UTC"}, {"name": "DASK_SCHEDULER_ADDRESS", "value": "x"}],
                 "resources": {"limits": {"rdma/ib": "1"}}},
                {"name": "log", "image": "busybox"},
            ],
            "volumes": [{"name": "shm", "emptyDir": {"sizeLimit": "1Gi"}}],
        },
    }  # fmt: skip
    asked = {**ASKED, "template": {"worker": worker, "scheduler": {"spec": {"priorityClassName": "day"}}}}
    resource = made(Cluster(kind="kubernetes", kubernetes=asked))
    assert [error.message for error in crd.iter_errors(resource)] == []
    plain = made(Cluster(kind="kubernetes", kubernetes=ASKED))["spec"]
    pods, (container, beside) = resource["spec"], resource["spec"]["worker"]["spec"]["containers"]
    before = plain["worker"]["spec"]["containers"][0]
    assert beside == {"name": "log", "image": "busybox"}
    assert (container["args"], container["image"]) == (before["args"], "rowmill:cuda")
    assert [(entry["name"], entry["value"]) for entry in container["env"][1:]] == [
        ("DASK_SCHEDULER_ADDRESS", "x"), ("TZ", "UTC"),
    ]  # fmt: skip
    assert container["volumeMounts"] == [*before["volumeMounts"], mount]
    assert container["resources"]["limits"] == {**before["resources"]["limits"], "rdma/ib": "1"}
    pod = pods["worker"]["spec"]
    assert pods["worker"]["metadata"] == {"annotations": {"team": "shop"}}
    assert (pod["priorityClassName"], pod["serviceAccountName"]) == ("night", "dask")
    assert pod["tolerations"] == [{"key": "spot", "operator": "Exists"}]
    assert pod["initContainers"] == worker["spec"]["initContainers"]  # type: ignore[index]
    assert pod["volumes"][0] == {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}
    assert pod["volumes"][1:] == plain["worker"]["spec"]["volumes"][1:]
    assert pods["scheduler"]["spec"] == {**plain["scheduler"]["spec"], "priorityClassName": "day"}


@pytest.mark.parametrize(
    ("template", "hint"),
    [
        ({"workers": {}}, "Input should be 'worker' or 'scheduler'"),
        ({"worker": {"env": {}}}, "Input should be 'metadata' or 'spec'"),
        ({"worker": {"spec": []}}, "Input should be a valid dictionary"),
        ({"worker": {"spec": {"containers": {"name": "worker"}}}}, "containers of worker are not a list"),
        ({"worker": {"spec": {"containers": [{"image": "a"}]}}}, "with a name each"),
        ({"worker": {"spec": {"containers": [{"name": "worker", "args": ["id"]}]}}}, "leave out `args` and `command`"),
    ],
)
def test_a_wrong_template_is_refused(template: dict[str, Any], hint: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Cluster.model_validate({"kind": "kubernetes", "kubernetes": {**ASKED, "template": template}})
    assert hint in str(caught.value)


def test_the_scheduler_is_encrypted_and_its_dashboard_stays_in_its_pod() -> None:
    scheduler = made(Cluster(kind="kubernetes", kubernetes=ASKED))["spec"]["scheduler"]
    (container,) = scheduler["spec"]["containers"]
    assert container["args"] == [
        "dask", "scheduler", "--protocol", "tls", "--port", "8786", "--no-dashboard",
        "--dashboard-address", "127.0.0.1:8787",
    ]  # fmt: skip
    assert [port["port"] for port in scheduler["service"]["ports"]] == [8786]
    assert "nvidia.com/gpu" not in container["resources"]["limits"]
    inherited = dask.config.deserialize(container["env"][0]["value"])["distributed"]["comm"]
    assert inherited["require-encryption"] is True
    assert inherited["tls"]["worker"] == {"cert": "/etc/rowmill-tls/cert.pem", "key": "/etc/rowmill-tls/key.pem"}


def test_a_resource_without_gpus_and_without_tls(crd: Any) -> None:
    asked = {"image": "rowmill:cpu", "cores": 4, "memory": "8GB"}
    resource = made(Cluster(kind="kubernetes", kubernetes=asked, unencrypted=True))
    assert [error.message for error in crd.iter_errors(resource)] == []
    (container,) = resource["spec"]["worker"]["spec"]["containers"]
    assert container["args"] == [
        "dask", "worker", "--name", "$(DASK_WORKER_NAME)", "--protocol", "tcp",
        "--memory-limit", "8000000000", "--nthreads", "4",
        "--no-dashboard", "--dashboard-address", "127.0.0.1:0",
    ]  # fmt: skip
    assert container["env"][1]["value"] == "tcp://rowmill-1-scheduler.data.svc:8786"
    assert [volume["name"] for volume in resource["spec"]["worker"]["spec"]["volumes"]] == ["shm"]


def test_the_validator_would_see_a_mistake(crd: Any) -> None:
    resource = made(Cluster(kind="kubernetes", kubernetes=ASKED))
    resource["spec"]["worker"]["spec"]["containers"][0]["args"] = "dask worker"
    assert [error.json_path for error in crd.iter_errors(resource)] == ["$.spec.worker.spec.containers[0].args"]


class Api(ThreadingHTTPServer):
    """As much of a Kubernetes API as a DaskCluster needs; its pods are processes of this host."""

    daemon_threads = True
    complete = 2  # objects, after which the operator starts the pods: a DaskCluster and its Secret

    def __init__(self, folder: Path, crd: Any) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.posted: list[dict[str, Any]] = []
        self.folder, self.crd = folder, crd
        self.objects: dict[str, dict[str, Any]] = {}
        self.pods: list[Any] = []
        self.port, self.works = free_port(), True

    def start_pods(self) -> None:
        """Scheduler and workers with the arguments and variables of the resource, once its certificates are there."""
        (cluster,) = [o for path, o in self.objects.items() if path.startswith(KINDS)]
        (secret,) = [o for path, o in self.objects.items() if "/secrets/" in path]
        place = self.folder / "tls"
        place.mkdir()
        for name, text in secret["data"].items():
            (place / name).write_bytes(base64.b64decode(text))
        spec = cluster["spec"]
        local = ["--host", "127.0.0.1"]
        worker = (spec["worker"]["spec"], [*local, "--no-nanny"])
        pods = [(spec["scheduler"]["spec"], local), *[worker] * spec["worker"]["replicas"]]
        for number, (pod, more) in enumerate(pods):
            (container,) = pod["containers"]
            known = {entry["name"]: entry["value"] for entry in container["env"]}
            settings = json.dumps(dask.config.deserialize(known["DASK_INTERNAL_INHERIT_CONFIG"]))
            here = json.loads(settings.replace("/etc/rowmill-tls", str(place)))
            known["DASK_INTERNAL_INHERIT_CONFIG"] = dask.config.serialize(here)
            known["DASK_SCHEDULER_ADDRESS"] = f"tls://127.0.0.1:{self.port}"
            swap = {"8786": str(self.port), "127.0.0.1:8787": "127.0.0.1:0", "$(DASK_WORKER_NAME)": f"worker-{number}"}
            arguments = [swap.get(word, word) for word in container["args"][1:]]
            self.pods.append(fork_dask([*arguments, *more], self.folder, **known))
        cluster["status"] = {"phase": "Running"}

    def stop_pods(self) -> None:
        for process in reversed(self.pods):
            process.terminate()
        for process in self.pods:
            process.join(20)
            assert process.exitcode is not None
        self.pods.clear()


class Handler(BaseHTTPRequestHandler):
    server: Api

    def answer(self, status: int, body: Any) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self) -> None:
        path, found = self.path.partition("?")[0].rstrip("/"), self.server.objects
        if path == "/version":
            self.answer(200, {"major": "1", "minor": "34", "gitVersion": "v1.34.0"})
        elif path.endswith("/pods"):
            self.answer(200, {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": []})
        elif path in found:
            self.answer(200, found[path])
        elif "fieldSelector=metadata.name" in self.path:
            name = self.path.rpartition("%3D")[2]
            items = [found[f"{path}/{name}"]] if f"{path}/{name}" in found else []
            self.answer(200, {"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items})
        else:
            self.answer(404, {"kind": "Status", "code": 404, "message": f"{path} not found", "reason": "NotFound"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path = f"{self.path.partition('?')[0]}/{body['metadata']['name']}"
        if path.startswith(KINDS) and (wrong := [error.message for error in self.server.crd.iter_errors(body)]):
            return self.answer(422, {"kind": "Status", "code": 422, "message": wrong[0]})
        self.server.posted.append(json.loads(json.dumps(body)))
        body["metadata"] |= {"uid": "4f1c", "resourceVersion": "1"}
        self.server.objects[path] = body
        self.answer(201, body)
        if self.server.works and len(self.server.objects) == self.server.complete:
            self.server.start_pods()
        return None

    def do_PATCH(self) -> None:
        self.answer(404, {"kind": "Status", "code": 404, "message": "not found", "reason": "NotFound"})

    def do_DELETE(self) -> None:
        path = self.path.partition("?")[0]
        gone = self.server.objects.pop(path, None)
        for name, other in list(self.server.objects.items()):  # what it owned goes with it
            if gone and any(owner["uid"] == "4f1c" for owner in other["metadata"].get("ownerReferences", [])):
                del self.server.objects[name]
        self.server.stop_pods()
        self.answer(200 if gone else 404, gone or {"kind": "Status", "code": 404, "message": "not found"})

    def log_message(self, *_: object) -> None:
        return


@contextmanager
def serving(server: Api, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """An API server that KUBECONFIG leads to."""
    user, context = {"name": "u", "user": {"token": "t"}}, {"cluster": "c", "user": "u", "namespace": "data"}
    place = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_address[1]}"}}
    known = {"apiVersion": "v1", "kind": "Config", "clusters": [place], "users": [user], "current-context": "x",
             "contexts": [{"name": "x", "context": context}]}  # fmt: skip
    (folder / "kubeconfig").write_text(yaml.safe_dump(known))
    monkeypatch.setenv("KUBECONFIG", str(folder / "kubeconfig"))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stop_pods()
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def serving_pods(folder: Path, crd: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """An API server; the scheduler's service answers on this host."""
    import dask_kubernetes.operator.networking as networking

    async def address(service: str, namespace: str) -> str:
        assert (service.rpartition("-")[2], namespace) == ("scheduler", "data")
        return f"tcp://127.0.0.1:{server.port}"

    monkeypatch.setattr(networking, "get_scheduler_address", address)
    with serving(Api(folder, crd), folder, monkeypatch) as server:
        yield server


@pytest.fixture
def api(tmp_path: Path, crd: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    with serving_pods(tmp_path, crd, monkeypatch) as server:
        yield server


class Ran(NamedTuple):
    """A run on a pod: its state and output; while it ran, the processes of the pods and of the worker, and what was
    said to a client without certificates; what Kubernetes had at its end."""

    state: Any
    out: Path
    pods: list[int]
    workers: list[int]
    refused: str
    left: list[Any]


@pytest.fixture(scope="module")
def ran(crd: Any, tmp_path_factory: pytest.TempPathFactory, prefect_server: Any) -> Ran:
    folder, seen = tmp_path_factory.mktemp("pods"), dict[str, Any]()

    def look(cluster: Any) -> None:
        seen["pods"] = [pod.pid for pod in server.pods]
        with Client(cluster, set_as_default=False) as client:
            seen["workers"] = [*client.run(os.getpid).values()]
        with patch.object(resolve, "LOOK_SECONDS", 2), pytest.raises(GiveUpError) as caught:
            make_cluster(Cluster(kind="address", address=cluster.scheduler_address))
        seen["refused"] = caught.value.what

    asked = {"image": "rowmill:cpu", "cores": 1, "memory": "2GB"}
    section = {"kind": "kubernetes", "kubernetes": asked, "start_timeout": 60}
    data, out = make_data(folder / "in", files=2), folder / "out"
    with pytest.MonkeyPatch.context() as monkeypatch, serving_pods(folder, crd, monkeypatch) as server:
        state = run_job(data, out, section, look)
        eventually(lambda: not server.objects and not server.pods)
        return Ran(state, out, left=[*server.objects, *server.pods], **seen)


@pytest.mark.system
@pytest.mark.promise("a DaskCluster and the Secret with its certificates")
def test_a_run_on_pods_that_an_operator_starts(ran: Ran) -> None:
    assert ran.state.is_completed()
    assert sum(rows for rows, _ in digests(ran.out)) == 2 * BLOCK
    assert ran.workers == ran.pods[1:]
    assert len(ran.workers) == 1
    assert ran.left == []


@pytest.mark.system
def test_who_has_no_certificate_of_the_pods_is_refused(ran: Ran) -> None:
    assert ran.refused == "no Dask scheduler answers"


@pytest.mark.system
def test_an_operator_that_does_nothing(api: Api) -> None:
    api.works = False
    known = Path(os.environ["KUBECONFIG"])
    known.write_text(known.read_text().replace("namespace: data", "namespace: other"))
    section = {"image": "i", "cores": 1, "memory": "2GB", "namespace": "data"}
    asked = Cluster(kind="kubernetes", kubernetes=section, start_timeout=1)
    with pytest.raises(GiveUpError, match="the operator has not started the scheduler") as caught:
        make_cluster(asked)
    assert caught.value.where.startswith("DaskCluster data/rowmill-")
    assert caught.value.why == "it made no pod"
    assert api.objects == {}


@pytest.mark.system
def test_a_resource_that_kubernetes_refuses(api: Api) -> None:
    asked = {"image": "i", "cores": 1, "memory": "2GB", "tolerations": [{"key": 7}]}
    with pytest.raises(JobError, match="Kubernetes refuses the cluster") as caught:
        make_cluster(Cluster(kind="kubernetes", kubernetes=asked))
    assert "7 is not of type 'string'" in caught.value.why
    assert api.objects == {}


@pytest.mark.system
def test_no_kubernetes_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = {"cluster": "c", "user": "u", "namespace": "data"}
    known = {"clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{free_port()}"}}],
             "users": [{"name": "u", "user": {}}], "contexts": [{"name": "x", "context": context}],
             "current-context": "x"}  # fmt: skip
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(known))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with pytest.raises(GiveUpError, match="Kubernetes does not answer") as caught:
        make_cluster(Cluster(kind="kubernetes", kubernetes={"image": "i", "cores": 1, "memory": "2GB"}))
    assert "kubectl get daskclusters" in caught.value.do


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"cores": 1, "memory": "1GB"}, "kubernetes.image\n  Field required"),
        ({"image": "i", "cores": 0, "memory": "1GB"}, "greater than 0"),
        ({"image": "i", "cores": 1, "memory": "1GB", "namespace": "Not_Good"}, "should match pattern"),
        ({"image": "i", "cores": 1, "memory": "1GB", "replicas": 3}, "Extra inputs"),
    ],
)
def test_a_wrong_section_is_refused(section: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Cluster(kind="kubernetes", kubernetes=section)
    assert said in str(caught.value)


def test_pods_that_should_scale_are_answered_by_the_class_that_scales() -> None:
    with pytest.raises(ValidationError, match=r"set cluster_class: dask_kubernetes.operator.KubeCluster"):
        Cluster.model_validate({"kind": "kubernetes", "kubernetes": ASKED, "adapt": {"maximum": 4}})


class ClassApi(Api):
    """The same for KubeCluster: its pods have no certificates, and one worker runs at first."""

    complete = 1

    def stop_pods(self) -> None:
        for process in self.pods:
            process.kill()
        super().stop_pods()

    def start_pods(self) -> None:
        (cluster,) = [o for path, o in self.objects.items() if path.startswith(KINDS)]
        for role, pod in (("scheduler", cluster["spec"]["scheduler"]), ("worker", cluster["spec"]["worker"])):
            (container,) = pod["spec"]["containers"]
            words = [word.replace("8786", str(self.port)) for word in container["args"][1:]]
            known = {entry["name"]: entry["value"] for entry in container.get("env", [])}
            more = [f"tcp://127.0.0.1:{self.port}"] if role == "worker" else []
            self.pods.append(fork_dask([*words, *more, "--host", "127.0.0.1"], self.folder, **known))
        cluster["status"] = {"phase": "Running"}


@pytest.fixture
def class_api(tmp_path: Path, crd: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClassApi]:
    """An API server for KubeCluster, whose waits for pods and services have nothing to wait for."""
    from dask_kubernetes.operator.kubecluster import kubecluster

    async def ready(*_: Any, **__: Any) -> str:
        return f"tcp://127.0.0.1:{server.port}"

    for wait in ("wait_for_scheduler", "wait_for_service", "get_scheduler_address"):
        monkeypatch.setattr(kubecluster, wait, ready)
    with serving(ClassApi(tmp_path, crd), tmp_path, monkeypatch) as server:
        yield server


def own_pods() -> dict[str, Any]:
    """A section with a pod template of one's own."""
    from dask_kubernetes.operator import make_cluster_spec

    spec = make_cluster_spec("own", image="rowmill:cpu", n_workers=1, env={"TZ": "UTC"}, resources={})
    pods = {role: spec["spec"][role]["spec"] for role in ("scheduler", "worker")}
    pods["worker"]["nodeSelector"] = {"disk": "fast"}
    pods["worker"]["containers"][0]["args"] = ["dask", "worker", "--nthreads", "2", "--no-dashboard", "--no-nanny"]
    pods["scheduler"]["containers"][0]["args"] = ["dask", "scheduler", "--port", "8786", "--no-dashboard"]
    arguments = {"custom_cluster_spec": spec, "namespace": "data"}
    return {"cluster_class": "dask_kubernetes.operator.KubeCluster", "cluster_kwargs": arguments}


@pytest.mark.system
def test_a_run_on_kubecluster_with_a_pod_template_of_one_s_own(
    class_api: ClassApi, tmp_path: Path, prefect_server: Any
) -> None:
    section = {**own_pods(), "adapt_kwargs": {"minimum": 1, "maximum": 3}}
    assert run_job(make_data(tmp_path / "in", files=2), tmp_path / "out", section).is_completed()
    assert class_api.pods == []
    assert not [path for path in class_api.objects if path.startswith(KINDS)]  # Kubernetes removes what belongs to it
    cluster, autoscaler = class_api.posted
    assert cluster["spec"]["worker"]["spec"]["nodeSelector"] == {"disk": "fast"}
    assert autoscaler["kind"] == "DaskAutoscaler"
    assert autoscaler["spec"] == {"cluster": "own", "minimum": 1, "maximum": 3}
    assert Manifest.load(tmp_path / "out").data["exchange"] == "disk"
    assert sum(rows for rows, _ in digests(tmp_path / "out")) == 2 * BLOCK


@pytest.mark.system
def test_pods_of_a_class_that_does_not_start_are_removed(class_api: ClassApi, monkeypatch: pytest.MonkeyPatch) -> None:
    from dask_kubernetes.operator.kubecluster import kubecluster

    async def never(*_: Any, **__: Any) -> None:
        raise TimeoutError("no service")

    monkeypatch.setattr(kubecluster, "wait_for_service", never)
    with pytest.raises(GiveUpError, match="the cluster could not be started") as caught:
        make_cluster(Cluster(**own_pods()))
    assert "no service" in caught.value.why
    assert len(class_api.posted) == 1
    assert (class_api.objects, class_api.pods) == ({}, [])
    del caught
    gc.collect()  # what kr8s left open is closed here, and not while another test runs


@pytest.mark.system
def test_arguments_that_the_adapt_of_a_class_does_not_take(class_api: ClassApi) -> None:
    with pytest.raises(JobError, match="adapt does not take the arguments") as caught:
        make_cluster(Cluster(**own_pods(), adapt_kwargs={"maximum": 2, "interval": "5s"}))
    assert "unknown: interval; known: minimum, maximum" in caught.value.why
    assert (class_api.objects, class_api.pods) == ({}, [])
