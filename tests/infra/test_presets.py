"""Presets: their files, the texts that a job may set in them, those of a host, and clusters that they start."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml
from distributed import Client
from pydantic import ValidationError

from infra import bounded_yaml
from infra.clusters import by_class, kinds
from infra.clusters.keyword_types import PLAIN
from infra.clusters.model import RESERVED, Cluster, cluster_model
from infra.clusters.preset import FOLDER, OWN, VARIABLE, Keyword, read_own, read_preset, read_presets
from infra.clusters.remote import RunningCluster
from infra.clusters.resolve import resolve_cluster
from tasks.errors import JobError
from tests.clusters import IMPORTS
from tests.infra.elsewhere import ROOT, environment

pytestmark = pytest.mark.xdist_group("clusters")
PAGE = (ROOT / "infra" / "scaling.md").read_text()
EXAMPLE = PAGE.partition("## A cluster of your own site")[2].partition("```yml\n")[2].partition("```")[0]
LOCAL = """
description: "for kind here: threads"
cluster_class: distributed.LocalCluster
cluster_kwargs: {processes: false, host: 127.0.0.1, dashboard_address: "127.0.0.1:0", worker_dashboard_address: null}
keywords: {threads: {type: integer, default: 2, description: threads, sets: {threads_per_worker: "{value}"}}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of presets of a host, which has the example of the page."""
    place = tmp_path / "presets"
    place.mkdir()
    (place / "night_queue.yaml").write_text(EXAMPLE)
    monkeypatch.setenv(VARIABLE, str(place))
    return place


def with_presets(**files: str) -> Any:
    """The section `cluster` of this host, whose folder gets these files."""
    for name, text in files.items():
        (Path(os.environ[VARIABLE]) / f"{name}.yaml").write_text(text)
    return cluster_model(read_presets(RESERVED))


@pytest.mark.parametrize("name", OWN)
def test_a_preset_of_rowmill_reads_as_one_of_a_host(name: str) -> None:
    assert read_own(name) == read_preset(FOLDER / f"{name}.yaml")
    assert {path.stem for path in FOLDER.iterdir()} == {*OWN}


def values_of(kind: str, text: str) -> list[Any]:
    """Values of a type that hold a text, nested as deep as the type takes it."""
    kinds_of_text = ("memory", "walltime", "word", "host", "path", "file", "line")
    if kind in kinds_of_text:
        return [text]
    if kind == "nested":
        return [{"a": text}, {text: "a"}, {"a": [{"b": [text]}]}, {"a": {"b": {text: 1}}}]
    if kind == "pod template":
        return [{"worker": {"spec": value}} for value in values_of("nested", text)]
    if kind.startswith("list of "):
        return [["a", value] for value in values_of(kind.removeprefix("list of "), text)]
    if kind.startswith("map of "):
        return [{"a": value} for value in values_of(kind.removeprefix("map of "), text)] + [{text: "a"}]
    return []


TEXTS = [(preset, name) for preset in OWN for name in read_own(preset).keywords]


@pytest.mark.parametrize(("preset", "name"), TEXTS, ids=lambda one: one)
@pytest.mark.parametrize("text", ["a\nid", "a\rid", "a\x00id", "a\u2028id", "\n#SBATCH --wrap=id"])
def test_no_text_of_a_job_becomes_a_line_of_a_script_however_deep_it_stands(preset: str, name: str, text: str) -> None:
    keyword = read_own(preset).keywords[name]
    needed = {"ssh": {"hosts": ["a"]}, "slurm": {"cores": 1, "memory": "1GB"},
              "kubernetes": {"image": "i", "cores": 1, "memory": "1GB"}}[preset]  # fmt: skip
    Cluster(kind=preset, **{preset: needed})
    values = values_of(keyword.type, text)
    assert values or keyword.type in ("integer", "number")
    for value in values:
        with pytest.raises(ValidationError, match=f"{preset}.{name}"):
            Cluster(kind=preset, **{preset: {**needed, name: value}})


@pytest.mark.parametrize("kind", [kind for kind in PLAIN if values_of(kind, "a")])
def test_a_type_of_text_takes_no_line_break(kind: str) -> None:
    """So that a preset of a host cannot let one through."""
    for form in (kind, f"list of {kind}", f"map of {kind}"):
        keyword = {"type": form, "description": "x", "limited_by": "ROWMILL_FUNCTION_MODULES"}
        preset = read_own("slurm").model_copy(update={"keywords": {"own": Keyword.model_validate(keyword)}})
        for value in values_of(form, "a\nid"):
            with pytest.raises(ValidationError):
                preset.section()(own=value)


WRONG = {
    "yaml": ("cluster_class: [", "cannot be read"),
    "list": ("- a", "is not a map with cluster_class"),
    "class": ("description: x\ncluster_class: PBSCluster", "cluster_class"),
    "key": ("description: x\ncluster_class: a.B\nkwargs: {}", "kwargs is unknown"),
    "type": ("description: x\ncluster_class: a.B\nkeywords: {queue: {type: wrod, description: x}}",
             "keywords.queue.type there is no type 'wrod': did you mean 'word'"),
    "command": ("description: x\ncluster_class: a.B\nkeywords: {setup: {type: list of line, description: x}}",
                "keywords.setup a list of line may hold commands: set limited_by, or another type"),
    "default": ("description: x\ncluster_class: a.B\nkeywords: {queue: {type: word, default: a b, description: x}}",
                "may become part of a script"),
    "keyword": ("description: x\ncluster_class: a.B\nkeywords: {model_dump: {type: word, description: x}}",
                "the keyword 'model_dump' has a meaning of its own"),
    "counted": ("description: x\ncluster_class: a.B\none_worker_for: hosts", "there is no keyword 'hosts'"),
    "no text": ("description: x\ncluster_class: a.B\nkeywords: {n: {type: integer, pattern: a, description: x}}",
                "the type integer takes no pattern: one is for a text"),
    "number": ("description: x\ncluster_class: a.B\none_worker_for: n\nkeywords: {n: {type: integer, description: x}}",
               "the keyword 'n' is not a list that is required"),
    "refused": ("description: x\ncluster_class: a.B\nrefuses: {worker: none}", "refuses"),
    "pattern": ("description: x\ncluster_class: a.B\nkeywords: {a: {type: word, pattern: '[', description: x}}",
                "regex"),
}  # fmt: skip


@pytest.mark.promise("`of this host cannot be used`")
@pytest.mark.promise("A file with a mistake makes only its own kind unusable")
@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_makes_only_its_own_kind_unusable(case: str, folder: Path) -> None:
    text, why = WRONG[case]
    section = with_presets(broken=text)
    assert section(kind="night_queue", night_queue={"memory": "1GB"}).preset is not None
    with pytest.raises(ValidationError) as caught:
        section(kind="broken")
    message = str(caught.value)
    assert f"the preset broken of this host cannot be used: {folder}/broken.yaml" in message
    assert why in message


def test_names_that_a_preset_may_not_have(folder: Path) -> None:
    section = with_presets(workers=LOCAL, cpu=LOCAL, **{"Big-Queue": LOCAL})
    assert section(kind="cpu").preset is None
    for name, why in (("workers", "rename the file"), ("Big-Queue", "small letters, digits and _")):
        with pytest.raises(ValidationError, match=why):
            section(kind=name)


def test_a_folder_that_is_not_there_is_named_where_its_preset_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/no/presets")
    section = cluster_model(read_presets(RESERVED))
    assert section(kind="slurm", slurm={"cores": 1, "memory": "1GB"}).preset is not None
    with pytest.raises(ValidationError, match=f"{VARIABLE} = /no/presets is not a folder"):
        section(kind="night_queue")


@pytest.mark.promise("a job cannot name a file")
@pytest.mark.parametrize("kind", ["/etc/presets/own.yaml", "../presets/slurm", "night_queue.yaml"])
def test_a_job_cannot_name_a_file(kind: str, folder: Path) -> None:
    with pytest.raises(ValidationError, match="Input should be 'auto'"):
        with_presets()(kind=kind)


@pytest.mark.promise("A file of the name `slurm.yaml` replaces the preset of rowmill")
def test_a_host_replaces_a_preset_of_rowmill(folder: Path) -> None:
    section = with_presets(slurm=EXAMPLE)
    with pytest.raises(ValidationError, match=r"slurm\.queue\n  Extra inputs"):
        section(kind="slurm", slurm={"memory": "1GB", "queue": "a"})
    assert section(kind="slurm", slurm={"memory": "1GB"}).class_path == "dask_jobqueue.PBSCluster"


def script(asked: Any) -> list[str]:
    """The lines of the job that would be submitted, its settings and the options of its workers left out."""
    opened = RunningCluster()
    try:
        with patch.object(shutil, "which", str):
            made = by_class.construct(opened, asked, by_class.check_class(asked), IMPORTS)
        lines = made.job_script().splitlines()
    finally:
        opened.close()
    return [re.sub(r" ADDRESS.*|(INHERIT_CONFIG)=.*", r"\1", line.replace(opened.scheduler_address, "ADDRESS"))
            for line in lines if line]  # fmt: skip


@pytest.mark.system
@pytest.mark.promise("its jobs get what those of `kind: slurm` get: TLS, a folder of their own for spilled data")
def test_the_example_of_the_page_is_a_kind_with_all_that_rowmill_gives(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("dask_jobqueue", reason="needs dask-jobqueue: pip install '.[test]'")
    own = {"memory": "64GB", "project": "shop", "gpus": 2, "modules": ["module load cuda"]}
    asked = with_presets()(kind="night_queue", workers=4, night_queue=own, interface="lo")
    assert resolve_cluster(asked) == ("night_queue", "cudf")
    assert (asked.gpus, asked.scaling, asked.has_no_gpus) == (2, {}, False)
    assert script(asked) == [
        "#!/usr/bin/env bash",
        "#PBS -N dask-worker",
        "#PBS -A shop",
        "#PBS -l select=1:ncpus=16:mem=60GB",
        "#PBS -l walltime=08:00:00",
        "#PBS -l ngpus=2",
        "module load python",
        "module load cuda",
        'rowmill_scratch=$(mkdir -p "${TMPDIR:-/tmp}" && mktemp -d "${TMPDIR:-/tmp}"/rowmill-XXXXXXXX) || exit 1',
        "trap 'rm -rf \"$rowmill_scratch\"' EXIT",
        "export DASK_INTERNAL_INHERIT_CONFIG",
        f"{sys.executable} -P -m dask cuda worker",
    ]
    with pytest.raises(ValidationError, match=r"night_queue\.gpus\n  Input should be less than or equal to 8"):
        with_presets()(kind="night_queue", night_queue={**own, "gpus": 9})


@pytest.mark.system
def test_a_preset_of_any_class_starts_with_tls_and_the_numbers_of_the_job(folder: Path) -> None:
    section = with_presets(here=LOCAL)
    with (
        kinds.make_cluster(section(kind="here", workers=2, here={"threads": 3}), IMPORTS) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        assert cluster.scheduler_address.startswith("tls://")
        assert [worker["nthreads"] for worker in workers] == [3, 3]
    with pytest.raises(JobError, match="LocalCluster does not take rmm_pool_size") as caught:
        kinds.make_cluster(section(kind="here", here={}, resources={}).model_copy(update={"rmm_pool_size": "1GB"}))
    assert caught.value.where == "cluster.rmm_pool_size"
    assert "the preset here has workers that rowmill does not start" in caught.value.why


@pytest.mark.system
def test_bounds_of_a_preset_scale_its_cluster_unless_the_job_has_a_number(folder: Path) -> None:
    section = with_presets(here=f"{LOCAL}adapt_kwargs: {{minimum: 1, maximum: 3, interval: 5s}}\n")
    assert section(kind="here").scaling == {"minimum": 1, "maximum": 3, "interval": "5s"}
    assert section(kind="here").class_arguments["threads_per_worker"] == 2
    assert section(kind="here", here={}, workers=2).scaling == {}
    own = section(kind="here", here={}, adapt={"maximum": 2})
    assert own.scaling == {"minimum": 1, "maximum": 2, "interval": "5s"}
    with kinds.make_cluster(own, IMPORTS) as cluster:
        assert len(cluster.scaled.workers) == 1


def test_values_of_a_preset_reach_processes_that_do_not_have_its_file() -> None:
    asked = Cluster(kind="ssh", ssh={"hosts": ["a"], "port": 22}, threads_per_worker=3)
    there = pickle.loads(pickle.dumps(asked))  # noqa: S301
    assert there.model_dump() == asked.model_dump()
    assert there.ssh.port == 22


IN_A_PROCESS = """
import json
from tests.reference import keys_table
from flows.job.form import cluster_section
from flows.job.job import make_job
from tasks.errors import JobError

def refused(**keys):
    section = {"kind": "night_queue", "night_queue": {"memory": "1GB", **keys}}
    job = {"source": {"path": "in"}, "features": [{"columns": ["x"]}], "output": {"path": "out"}, "cluster": section}
    try:
        make_job(job)
    except JobError as error:
        return f"{error.what}: {error.where}"
    return None

rows = [row for row in keys_table().splitlines() if "night_queue." in row]
form = cluster_section(["kind"])
hidden = form["patternProperties"]["^night_queue$"]["properties"]
limits = [refused(), refused(project="shop"), refused(modules=["id"]), refused(project="a\\nid"), refused(queue="a")]
print(json.dumps({"rows": rows, "kinds": form["properties"]["kind"]["enum"], "hidden": [*hidden], "limits": limits}))
"""


@pytest.mark.system
@pytest.mark.promise("`ROWMILL_CLUSTER_PRESETS`")
def test_reference_form_and_limits_know_the_presets_of_the_host(folder: Path, tmp_path: Path) -> None:
    limits = {"ROWMILL_FUNCTION_MODULES": "", "ROWMILL_ALLOWED_CLUSTERS": "", "ROWMILL_ALLOWED_CLUSTER_KEYS": ""}
    command = [sys.executable, "-c", IN_A_PROCESS]
    done = subprocess.run(command, env=environment(**limits), capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert "| `cluster.night_queue.project` |  | text | project that is charged |" in seen["rows"]
    assert seen["kinds"] == ["auto", "cuda", "cpu", "address", "ssh", "slurm", "kubernetes", "night_queue"]
    assert seen["hidden"] == ["memory", "gpus", "project", "modules"]
    none, project, modules, scripted, unknown = seen["limits"]
    assert (none, project) == (None, None)
    assert modules == "a job may not contain commands: cluster.night_queue.modules"
    assert "may become part of a script" in scripted
    assert "cluster.night_queue.queue" in unknown


def test_the_files_of_presets_are_plain_yaml() -> None:
    """So that the faster loader of rowmill's own reads what that of a host's would."""
    for name in OWN:
        text = (FOLDER / f"{name}.yaml").read_text()
        assert bounded_yaml.load(text) == yaml.load(text, yaml.SafeLoader)
