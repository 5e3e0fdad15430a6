"""Who may do what: paths, functions and secrets of jobs are refused before any worker starts, or a file is touched."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flows.job.access import CLUSTERS, SWITCHES, limits, serving_limits
from flows.job.allowed_names import is_listed
from flows.job.job import make_application, make_job
from infra.clusters.configurations import VARIABLE as CONFIGURATIONS
from tasks import ops
from tasks.errors import DataError, JobError
from tasks.ops.user_code import VARIABLE as MODULES
from tasks.storage.allowed_roots import VARIABLE as ROOTS
from tasks.workflow import Workflow

pytestmark = pytest.mark.xdist_group("faults")
MINE = "tests.flows.own_operator"


def double(column: Any) -> Any:
    return column * 2


def job(root: Path, **changes: Any) -> dict[str, Any]:
    """A job inside of `root`, with `section__key` changes."""
    data: dict[str, Any] = {
        "source": {"path": str(root / "in")},
        "features": [{"columns": ["x"]}],
        "output": {"path": str(root / "out" / "toy")},
    }
    for name, value in changes.items():
        section, _, key = name.partition("__")
        if key:
            data.setdefault(section, {})[key] = value
        else:
            data[section] = value
    return data


@pytest.fixture(autouse=True)
def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run of a deployment limits in its process ends with the test."""
    for variable in (MODULES, CLUSTERS, SWITCHES):
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "root" / "in").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "root" / "link").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setenv(ROOTS, str(tmp_path / "root"))
    return tmp_path / "root"


PLACES = {
    "source__path": "source.path", "source__valid": "source.valid", "output__path": "output.path",
    "run__scratch": "run.scratch", "source__bad_lines": "source.bad_lines",
    "cluster__local_directory": "cluster.local_directory", "run__lineage": "run.lineage",
    "run__metrics": "run.metrics",
}  # fmt: skip


@pytest.mark.promise("outside of these a run neither reads nor writes")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("path", ["/nowhere/at/all", "{root}/../elsewhere", "{root}/link/x", "../elsewhere"])
def test_every_path_of_a_job_is_held_to_the_roots(place: str, path: str, root: Path) -> None:
    make_job(job(root, **{place: str(root / "side")}))
    with pytest.raises(JobError) as refused:
        make_job(job(root, **{place: path.format(root=root)}))
    assert refused.value.where.startswith(f"{PLACES[place]} = ")
    assert str(root) in refused.value.why


def test_keys_certificates_and_commands_of_a_cluster(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = {"kind": "ssh", "ssh": {"hosts": ["localhost"], "key": str(root / "key")}}
    slurm = {"kind": "slurm", "slurm": {"cores": 1, "memory": "1GB", "setup": ["module load cuda"]}}
    make_job(job(root, cluster=ssh))
    make_job(job(root, cluster=slurm))
    with pytest.raises(JobError, match=r"cluster.ssh.key = /etc/shadow"):
        make_job(job(root, cluster={"kind": "ssh", "ssh": {"hosts": ["localhost"], "key": "/etc/shadow"}}))
    logged = {"cores": 1, "memory": "1GB", "log_directory": str(root / "link")}
    with pytest.raises(JobError, match=r"cluster.slurm.log_directory = .*elsewhere"):
        make_job(job(root, cluster={"kind": "slurm", "slurm": logged}))
    monkeypatch.setenv(MODULES, "shop")
    with pytest.raises(JobError, match="a job may not contain commands") as refused:
        make_job(job(root, cluster=slurm))
    assert refused.value.where == "cluster.slurm.setup"
    pods = {"image": "a", "cores": 1, "memory": "1GB", "template": {"worker": {"spec": {"initContainers": []}}}}
    with pytest.raises(JobError, match="a job may not contain commands") as refused:
        make_job(job(root, cluster={"kind": "kubernetes", "kubernetes": pods}))
    assert refused.value.where == "cluster.kubernetes.template"
    monkeypatch.setenv(MODULES, "shop,shell")
    make_job(job(root, cluster=slurm))


def test_lists_side_tables_and_what_lies_beside_the_output_count(root: Path) -> None:
    with pytest.raises(JobError, match=r"source.path = /etc/passwd"):
        make_job(job(root, source__path=[str(root / "in"), "/etc/passwd"]))
    with pytest.raises(JobError, match=r"output.path \(the folder beside it\) = .*/.root.rowmill-old"):
        make_job(job(root, output__path=str(root)))
    join = [{"columns": ["x"], "ops": [{"op": "JoinExternal", "table": str(root.parent / "side.csv"), "on": "x"}]}]
    with pytest.raises(JobError, match=r"JoinExternal in features\[0\] = .*side.csv"):
        make_job(job(root, features=join))


def test_a_fitted_workflow_is_read_inside_of_the_roots_only(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"x": [1.0, 2.0, 3.0]})
    workflow = Workflow(["x"] >> ops.Normalize()).fit(table)
    places = {root / "fitted": True, root / "link" / "fitted": False, root.parent / "elsewhere" / "fitted": False}
    for place, allowed in places.items():
        workflow.save(place)
        data = {**job(root), "fitted": str(place)}
        del data["features"]
        if allowed:
            assert make_application(data).fitted == str(place)
        else:
            with pytest.raises(JobError, match=r"fitted = .*elsewhere|fitted = .*link"):
                make_application(data)
    versions = {**job(root), "fitted": str(root / "versions")}
    latest = root / "versions" / "_latest"
    latest.parent.mkdir()
    latest.write_text("../../elsewhere/fitted")
    with pytest.raises(DataError, match=r"_latest is damaged(.|\n)*not a version in this folder"):
        make_application(versions)
    (root / "versions" / "v1").symlink_to(root.parent / "elsewhere" / "fitted")
    latest.write_text("v1")
    with pytest.raises(JobError, match=r"outside the allowed roots(.|\n)*elsewhere"):
        make_application(versions)
    latest.unlink()
    (root.parent / "elsewhere" / "secret").write_text("hunter2")
    latest.symlink_to(root.parent / "elsewhere" / "secret")
    with pytest.raises(JobError, match="outside the allowed roots") as refused:
        make_application(versions)
    assert "hunter2" not in str(refused.value)


@pytest.fixture
def deployed(prefect_server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A run of a deployment of `preprocess`, executed as a worker's process executes it; its final state."""
    from prefect import get_client
    from prefect.flow_engine import run_flow

    from flows.preprocess import preprocess

    monkeypatch.setenv(MODULES, "")  # what the run sets is undone with it
    monkeypatch.delenv(MODULES)

    def run(parameters: dict[str, Any]) -> Any:
        with get_client(sync_client=True) as client:
            made = client.create_deployment(client.create_flow(preprocess), "access")
            flow_run = client.create_flow_run_from_deployment(made, parameters=parameters)
        return run_flow(preprocess, flow_run=flow_run, return_type="state")

    return run


LAMBDA = [{"columns": ["x"], "ops": [{"op": "Lambda", "function": f"{__name__}:double"}]}]
FILTER = [{"columns": ["x"], "ops": [{"op": "Filter", "function": f"{__name__}:double"}]}]
MAP = [{"columns": ["x"], "ops": [{"op": "MapPartitions", "function": f"{__name__}:double", "columns_out": ["y"]}]}]
OWN = [{"columns": ["x"], "ops": [{"op": f"{MINE}:ShareOfLargest"}]}]


@pytest.mark.promise(
    "of which modules (and what is in them) a job or a saved workflow may name functions and operators"
)
@pytest.mark.parametrize(
    "features", [LAMBDA, FILTER, MAP, OWN], ids=["Lambda", "Filter", "MapPartitions", "own operator"]
)
def test_on_one_s_own_machine_all_modules_are_allowed_and_with_a_list_those_in_it(
    features: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_job(job(tmp_path, features=features))
    for allowed in ("", "tests.flows.others", "test", "numpy, pandas"):
        monkeypatch.setenv(MODULES, allowed)
        with pytest.raises(JobError, match=f"may not be used(.|\n)*{MODULES}"):
            make_job(job(tmp_path, features=features))
    for allowed in (f"numpy,{__name__},{MINE}", "numpy:tests"):
        monkeypatch.setenv(MODULES, allowed)
        make_job(job(tmp_path, features=features))


@pytest.mark.promise("no limit; **none** for runs of a deployment")
@pytest.mark.promise("`may not be used`")
def test_a_run_of_a_deployment_has_an_empty_list(tmp_path: Path, deployed: Any) -> None:
    for features in (LAMBDA, OWN):
        state = deployed(job(tmp_path, features=features))
        assert state.is_failed()
        assert "may not be used" in state.message
        assert "operators from no module" in state.message
    assert list(tmp_path.iterdir()) == []


def test_what_an_allowed_module_imported_is_not_allowed_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.ops.user_code import import_path

    monkeypatch.setenv(MODULES, __name__)
    assert import_path(f"{__name__}:double") is double
    for stranger in ("json.dumps", "Path.cwd", "pa.table"):
        with pytest.raises(JobError, match=r"may not be used"):
            import_path(f"{__name__}:{stranger}")


@pytest.mark.promise(
    "of which modules (and what is in them) a job or a saved workflow may name functions and operators"
)
def test_a_saved_workflow_that_names_functions_obeys_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"x": [1, 2]})
    Workflow(["x"] >> ops.Lambda(double)).fit(table).save(tmp_path / "fitted")
    assert Workflow.load(tmp_path / "fitted").transform(table).to_pydict() == {"x": [2, 4]}
    monkeypatch.setenv(MODULES, "")
    with pytest.raises(JobError, match=f"may not be used(.|\n)*{MODULES}") as refused:
        Workflow.load(tmp_path / "fitted")
    assert "damaged" not in str(refused.value)


URLS = {
    "s3://key:hunter2@bucket/logs": "a password", "https://host/logs.csv?X-Amz-Signature=hunter2": "a signature",
    "ftp://me:hunter2@host:21/x/*.csv": "a password", "https://host/logs.csv#access_token=hunter2": "a signature",
    "htps://me:hunter2@host/x.csv": "a password", "file://me:hunter2@host/x.csv": "a password",
}  # fmt: skip


@pytest.mark.promise("a URL with a password is refused, and so are options in the job")
@pytest.mark.parametrize("url", URLS)
def test_secrets_in_urls_are_refused_and_not_repeated(url: str, tmp_path: Path) -> None:
    with pytest.raises(JobError) as refused:
        make_job(job(tmp_path, source__path=url))
    assert refused.value.what == f"the URL holds {URLS[url]}"
    assert "hunter2" not in str(refused.value)
    assert "ROWMILL_STORAGE_<NAME>" in refused.value.do
    make_job(job(tmp_path, source__path=["sftp://me@host/logs", "https://host/a:b@c.csv"]))


PLACES_OF_URLS = [
    ("source__path", {}), ("source__valid", {}), ("output__path", {}), ("run__scratch", {}), ("source__bad_lines", {}),
    ("cluster__local_directory", {"cluster__kind": "cpu"}), ("cluster__address", {"cluster__kind": "address"}),
    ("base", {}), ("run__lineage", {}), ("run__metrics", {}),
]  # fmt: skip


@pytest.mark.parametrize(("key", "more"), PLACES_OF_URLS)
def test_a_secret_of_a_url_is_not_repeated_wherever_it_stands(key: str, more: dict[str, Any], tmp_path: Path) -> None:
    for url in ("s3://me:hunter2@host/x", "otlpss://me:hunter2@host:1"):
        with pytest.raises(JobError) as refused:
            make_job(job(tmp_path, **{key: url, **more}))
        assert "hunter2" not in str(refused.value)


@pytest.mark.promise("Keys of collectors are not part of a job", "flows/OPERATIONS.md#lineage-and-metrics")
@pytest.mark.parametrize(
    "address",
    ["http://me:hunter2@host:5000", "https://hunter2@host", "http://host/?key=hunter2", "http://host/#token=hunter2"],
)
def test_secrets_in_addresses_of_collectors_are_refused_and_not_repeated(address: str, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="holds a user or a query") as refused:
        make_job(job(tmp_path, run__lineage=address))
    assert "hunter2" not in str(refused.value)
    assert "OPENLINEAGE_API_KEY" in refused.value.do
    with pytest.raises(JobError, match="OTEL_EXPORTER_OTLP_HEADERS"):
        make_job(job(tmp_path, run__metrics="otlp://me:hunter2@host:4318"))


@pytest.mark.parametrize(("key", "address"), [("lineage", "s3://bucket/x"), ("metrics", "http://host:4318")])
def test_an_address_that_is_of_no_collector_is_refused(key: str, address: str, tmp_path: Path) -> None:
    with pytest.raises(
        JobError, match=rf"run.{key}: \w+:// is not for a collector: write \w+://host:port or file:path"
    ):
        make_job(job(tmp_path, **{f"run__{key}": address}))


ELSEWHERE = {
    "cluster.address": {"kind": "address", "address": "tls://10.0.0.7:8786"},
    "cluster.cluster_class": {"cluster_class": "dask_jobqueue.OARCluster"},
    "cluster.ssh.hosts": {"kind": "ssh", "ssh": {"hosts": ["gpu-1", "other"]}},
    "cluster.kubernetes.image": {
        "kind": "kubernetes",
        "kubernetes": {"image": "registry/other:1", "cores": 1, "memory": "1GB"},
    },
    "run.lineage": "http://other:5000",
    "run.metrics": "otlp://other:4318",
}


@pytest.mark.promise("patterns of the schedulers (`cluster.address`), hosts (`cluster.ssh.hosts`), images")
@pytest.mark.parametrize("field", ELSEWHERE)
def test_schedulers_hosts_and_images_are_those_that_the_host_lists(
    field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section, value = field.split(".")[0], ELSEWHERE[field]
    data = job(tmp_path, **{"cluster" if section == "cluster" else field.replace(".", "__"): value})
    make_job(data)
    monkeypatch.setenv(CLUSTERS, "tls://10.0.0.5:*, gpu-*, registry/rowmill:*")
    with pytest.raises(JobError, match="may not be used") as refused:
        make_job(data)
    assert refused.value.where == field
    assert CLUSTERS in str(refused.value.do)
    allowed = "tls://10.0.0.*:8786 gpu-* other registry/* dask_jobqueue.* http://other:* otlp://other:4318"
    monkeypatch.setenv(CLUSTERS, allowed)
    make_job(data)


@pytest.mark.promise("A star stands for characters of one label", "infra/README.md#who-may-do-what")
@pytest.mark.parametrize(
    ("name", "pattern", "listed"),
    [
        ("gpu-1", "gpu-*", True),
        ("gpu-1.evil.com", "gpu-*", False),
        ("gpu-1,evil", "gpu-*", False),
        ("gpu-x@evil", "gpu-*", False),
        ("gpu-1 -oProxyCommand=id", "gpu-*", False),
        ("gpu-1\nevil", "gpu-*", False),
        ("gpu-1:2222", "gpu-*", False),
        ("a.lab.org", "*.lab.org", True),
        ("a.b.lab.org", "*.lab.org", False),
        ("lab.org", "*.lab.org", False),
        ("tls://10.0.0.7:8786", "tls://10.0.0.*:8786", True),
        ("tls://10.0.0.7:8787", "tls://10.0.0.*:8786", False),
        ("tls://10.0.0.7:8787", "tls://10.0.0.*:*", True),
        ("tcp://10.0.0.7:8786", "tls://10.0.0.*:8786", False),
        ("tls://10.0.0.com:8786", "tls://10.0.0.*:8786", False),
        ("tls://10.0.0.7.evil.com:8786", "tls://10.0.0.*:8786", False),
        ("tls://10.0.0.7:1,tls://evil:8786", "tls://10.0.0.*:8786", False),
        ("tls://10.0.0.7@evil:8786", "tls://10.0.0.*:8786", False),
        ("http://marquez:5000", "http://marquez:5000", True),
        ("http://marquez:5000/evil", "http://marquez:*", False),
        ("http://marquez:5000/api", "http://marquez:5000/*", True),
        ("hub.io/rowmill:1.2", "hub.io/rowmill:*", True),
        ("hub.io/rowmill:1.2", "hub.io/rowmill", True),
        ("hub.io/rowmill", "hub.io/rowmill:1", False),
        ("hub.io/rowmill@sha256:0", "hub.io/rowmill:*", False),
        ("hub.evil.io/rowmill:1", "hub*/rowmill:*", False),
        ("hub:5000/rowmill:1", "hub:*/rowmill:1", True),
        ("hub:5000/rowmill:1", "hub/rowmill:1", False),
        ("hub/a/rowmill:1", "hub/*", False),
        ("dask_jobqueue.PBSCluster", "dask_jobqueue.*", True),
        ("dask_jobqueue.evil.PBSCluster", "dask_jobqueue.*", False),
    ],
)
def test_a_star_does_not_lead_to_another_host(name: str, pattern: str, listed: bool) -> None:
    assert is_listed(name, pattern) is listed


OPEN: dict[str, dict[str, Any]] = {
    "unencrypted": {"kind": "cpu", "unencrypted": True},
    "protocol": {"kind": "cpu", "protocol": "tcp", "unencrypted": True},
    "interface": {"kind": "cpu", "interface": "eth0"},
    "dashboard": {"kind": "cpu", "dashboard": True},
    "tls": {"kind": "cpu", "tls": {"ca": "a.pem", "cert": "b.pem", "key": "c.pem"}},
    "ssh.user": {"kind": "ssh", "ssh": {"hosts": ["gpu-1"], "user": "root"}},
    "ssh.port": {"kind": "ssh", "ssh": {"hosts": ["gpu-1"], "port": 2222}},
    "ssh.key": {"kind": "ssh", "ssh": {"hosts": ["gpu-1"], "key": "id"}},
    "ssh.known_hosts": {"kind": "ssh", "ssh": {"hosts": ["gpu-1"], "known_hosts": "mine"}},
}


@pytest.mark.promise("keys of the section `cluster` that a job may set", "infra/README.md#who-may-do-what")
@pytest.mark.parametrize("key", OPEN)
def test_a_switch_of_a_job_does_not_undo_a_limit_of_the_host(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = job(tmp_path, cluster=OPEN[key])
    make_job(data)
    monkeypatch.setenv(CLUSTERS, "gpu-1")
    others = {"unencrypted", "protocol"} - {key}
    for allowed in ("", ",".join(others)):
        monkeypatch.setenv(SWITCHES, allowed)
        if key == "protocol" and not allowed:
            continue  # unencrypted, which it needs, is refused first
        with pytest.raises(JobError, match=re.escape(f"a job may not set cluster.{key}")) as refused:
            make_job(data)
        assert f"add {key} to {SWITCHES}" in refused.value.do
    monkeypatch.setenv(SWITCHES, f"unencrypted {key}")
    make_job(data)


def test_what_opens_nothing_needs_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCHES, "")
    make_job(job(tmp_path, cluster={"kind": "cpu", "protocol": "tls", "unencrypted": False, "dashboard": False}))


def test_a_configuration_of_the_host_may_open_what_it_likes(deployment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment.write_text("open: {kind: cpu, protocol: tcp, unencrypted: true, dashboard: true}")
    monkeypatch.setenv(SWITCHES, "")
    assert make_job(job(deployment.parent, cluster={"configuration": "open"})).cluster.dashboard is True


def test_a_run_of_a_deployment_opens_no_port(tmp_path: Path, deployed: Any) -> None:
    state = deployed(job(tmp_path, cluster={"kind": "cpu", "unencrypted": True}))
    assert state.is_failed()
    assert "a job may not set cluster.unencrypted" in state.message


def slurm(**keys: Any) -> dict[str, Any]:
    return {"kind": "slurm", "slurm": {"cores": 1, "memory": "1GB", **keys}}


SCRIPTED = {
    "queue": lambda text: slurm(queue=text),
    "account": lambda text: slurm(account=text),
    "log_directory": lambda text: slurm(log_directory=text),
    "shared_directory": lambda text: slurm(shared_directory=text),
    "interface": lambda text: {**slurm(), "interface": text},
    "resources": lambda text: {**slurm(), "resources": {"transform": {text: 1}}},
    "tls": lambda text: {**slurm(), "tls": {"ca": text, "cert": "b", "key": "c"}},
    "visible_devices": lambda text: {"kind": "ssh", "ssh": {"hosts": ["a"], "gpus": 1}, "visible_devices": [text]},
}


@pytest.mark.parametrize("key", SCRIPTED)
@pytest.mark.parametrize(
    "text", ["a\nid", "a\rid", "a id", "a;id", "$(id)", "`id`", "a'", 'a"', "a&id", "a|id", "-x", ""]
)
def test_a_text_of_a_job_script_is_one_word(key: str, text: str, tmp_path: Path) -> None:
    make_job(job(tmp_path, cluster=SCRIPTED[key]("a-1.b_2")))
    with pytest.raises(JobError, match=rf"(?s)cluster.*{key}.*may become part of a script"):
        make_job(job(tmp_path, cluster=SCRIPTED[key](text)))


@pytest.mark.parametrize("text", ["a\nid", "a'; id; '", "$(id)", "`id`"])
def test_the_folder_for_spilled_data_is_one_path(text: str, tmp_path: Path) -> None:
    ssh = {"kind": "ssh", "ssh": {"hosts": ["a"]}}
    make_job(job(tmp_path, cluster={**ssh, "local_directory": "/my scratch"}))
    with pytest.raises(JobError, match=r"(?s)cluster\.local_directory.*may become part of a script"):
        make_job(job(tmp_path, cluster={**ssh, "local_directory": text}))


@pytest.mark.parametrize("line", ["a\nid", "a\rid"])
def test_a_line_of_a_job_script_is_one_line(line: str, tmp_path: Path) -> None:
    for keys in ({"setup": [line]}, {"directives": [line]}, {"python": line}):
        with pytest.raises(JobError, match="holds a line break"):
            make_job(job(tmp_path, cluster=slurm(**keys)))


ARGUMENTS: dict[str, dict[str, Any]] = {
    "hosts": {"cluster_class": "distributed.SSHCluster", "cluster_kwargs": {"hosts": ["other", "other"]}},
    "image": {"cluster_class": "dask_kubernetes.operator.KubeCluster", "cluster_kwargs": {"image": "other:1"}},
    "custom_cluster_spec": {"cluster_class": "dask_kubernetes.operator.KubeCluster",
                            "cluster_kwargs": {"custom_cluster_spec": {"spec": {}}}},
    "env": {"cluster_class": "dask_kubernetes.operator.KubeCluster", "cluster_kwargs": {"env": {"LD_PRELOAD": "x"}}},
    "job_script_prologue": {"cluster_class": "dask_jobqueue.PBSCluster",
                            "cluster_kwargs": {"cores": 1, "memory": "1GB", "job_script_prologue": ["id"]}},
    "worker_command": {"cluster_class": "dask_jobqueue.PBSCluster", "cluster_kwargs": {"worker_command": "id"}},
    "preload": {"cluster_class": "distributed.LocalCluster", "cluster_kwargs": {"preload": "import os"}},
    "worker_key": {"cluster_class": "distributed.LocalCluster", "adapt_kwargs": {"worker_key": "x"}},
}  # fmt: skip


@pytest.mark.promise("the word `shell` allows commands of a cluster", "infra/README.md#who-may-do-what")
@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_of_a_class_are_a_shell(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = job(tmp_path, cluster=ARGUMENTS[name])
    make_job(data)
    monkeypatch.setenv(CLUSTERS, "dask_jobqueue.*, dask_kubernetes.operator.*, distributed.*")
    monkeypatch.setenv(MODULES, "shop")
    with pytest.raises(JobError, match="arguments of a cluster class may not be given in a job") as refused:
        make_job(data)
    assert name in refused.value.where
    assert "cluster.configuration" in refused.value.do
    monkeypatch.setenv(MODULES, "shop, shell")
    make_job(data)
    monkeypatch.setenv(CLUSTERS, "other.*")  # shell does not allow a class
    with pytest.raises(JobError, match="may not be used"):
        make_job(data)


HOST = """
night:
  cluster_class: dask_jobqueue.PBSCluster
  cluster_kwargs: {cores: 8, memory: 16GB, job_script_prologue: [module load python]}
  adapt_kwargs: {minimum: 1, maximum: 8, interval: 5s}
fixed: {kind: slurm, workers: 3, local_directory: /fast, slurm: {cores: 1, memory: 1GB, setup: [module load cuda]}}
hosts: {kind: ssh, ssh: {hosts: [gpu1, gpu2]}}
"""


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The limits of a run of a deployment, on a host with cluster configurations; their file."""
    for variable in (MODULES, CLUSTERS):
        monkeypatch.setenv(variable, "")
    monkeypatch.setenv(ROOTS, str(tmp_path))
    monkeypatch.setenv(CONFIGURATIONS, str(tmp_path / "clusters.yaml"))
    (tmp_path / "clusters.yaml").write_text(HOST)
    return tmp_path / "clusters.yaml"


@pytest.mark.promise("a run of a deployment names a configuration and gives numbers of workers within its bounds")
@pytest.mark.parametrize(
    ("asked", "workers", "scaling"),
    [
        ({"configuration": "night"}, None, {"minimum": 1, "maximum": 8, "interval": "5s"}),
        ({"configuration": "night", "workers": 8}, 8, {}),
        ({"configuration": "night", "adapt": {"minimum": 2, "maximum": 4}}, None,
         {"minimum": 2, "maximum": 4, "interval": "5s"}),
        ({"configuration": "fixed"}, 3, {}),
        ({"configuration": "fixed", "workers": 2}, 2, {}),
        ({"configuration": "fixed", "adapt": {"maximum": 3}}, None, {"minimum": 1, "maximum": 3}),
        ({"configuration": "hosts"}, None, {}),
    ],
)  # fmt: skip
def test_a_deployment_names_a_configuration_of_the_host(
    asked: dict[str, Any], workers: int | None, scaling: dict[str, Any], deployment: Path
) -> None:
    planned = make_job(job(deployment.parent, cluster=asked))
    assert (planned.cluster.workers, planned.cluster.scaling) == (workers, scaling)
    assert planned.as_written()["cluster"] == asked  # the host's arguments are not in what the server keeps
    assert planned.request("pandas").run.exchange == ("disk" if scaling else "auto")


@pytest.mark.promise("`no cluster configuration`")
@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"configuration": "nihgt"}, "no cluster configuration 'nihgt': did you mean 'night'?"),
        ({"configuration": "night", "workers": 9}, "workers is 9; the configuration night allows 1 to 8"),
        ({"configuration": "night", "adapt": {"minimum": 0, "maximum": 9}}, "minimum is 0; the configuration night"),
        ({"configuration": "fixed", "workers": 4}, "workers is 4; the configuration fixed allows 1 to 3"),
        ({"configuration": "hosts", "workers": 1}, "the configuration hosts sets no bounds for `workers`"),
        ({"configuration": "night", "kind": "cpu"}, "leave out `kind`"),
        ({"configuration": "night", "cluster_kwargs": {"shebang": "#!/bin/sh"}}, "leave out `cluster_kwargs`"),
        ({"configuration": "fixed", "unencrypted": True}, "leave out `unencrypted`"),
        ({"cluster_class": "dask_jobqueue.PBSCluster"}, "dask_jobqueue.PBSCluster may not be used"),
        ({"cluster_class": "distributed.LocalCluster", "cluster_kwargs": {"n_workers": 1}},
         "arguments of a cluster class may not be given in a job"),
    ],
)  # fmt: skip
def test_a_deployment_gives_nothing_else(asked: dict[str, Any], text: str, deployment: Path) -> None:
    with pytest.raises(JobError, match=re.escape(text)):
        make_job(job(deployment.parent, cluster=asked))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("night: [", "cannot be read"),
        ("- night", "is not a map of names to sections `cluster`"),
        ("night: {kind: cpu, workers: many}", "the configuration night.workers of this host"),
        ("night: {cluster_class: PBSCluster}", "the configuration night.cluster_class of this host"),
        ("night: {configuration: night}", "the configuration night of this host"),
    ],
)
def test_a_wrong_file_of_configurations(content: str, text: str, deployment: Path) -> None:
    deployment.write_text(content)
    with pytest.raises(JobError, match=re.escape(text)):
        make_job(job(deployment.parent, cluster={"configuration": "night"}))


@pytest.mark.promise("a URL with a password is refused, and so are options in the job")
def test_options_of_a_storage_are_no_part_of_a_job(tmp_path: Path) -> None:
    with pytest.raises(JobError) as refused:
        make_job(job(tmp_path, source__storage_options={"key": "hunter2"}))
    assert refused.value.where == "source.storage_options"
    assert "hunter2" not in str(refused.value)


def test_who_serves_is_told_what_is_not_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ROOTS, "")
    monkeypatch.delenv(ROOTS)
    assert limits() == {ROOTS: "no limit", MODULES: "no limit", CLUSTERS: "no limit", SWITCHES: "no limit"}
    (line,) = serving_limits()
    assert "set ROWMILL_ALLOWED_ROOTS" in line
    assert limits() == {ROOTS: "no limit", MODULES: "no function", CLUSTERS: "this host", SWITCHES: "no key"}
    monkeypatch.setenv(ROOTS, "/data:s3://bucket/x")
    monkeypatch.setenv(MODULES, "shop.features")
    monkeypatch.setenv(CLUSTERS, "tls://10.0.0.5:8786, gpu-*")
    monkeypatch.setenv(SWITCHES, "interface dashboard")
    assert serving_limits() == []
    assert limits() == {
        ROOTS: "/data, s3://bucket/x",
        MODULES: "shop.features",
        CLUSTERS: "tls://10.0.0.5:8786, gpu-*",
        SWITCHES: "interface, dashboard",
    }
    assert json.dumps(limits())
