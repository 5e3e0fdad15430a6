"""Every key of a job changes something, or is refused where it cannot: the walk over all keys of the models.

`ENTRIES` has each key, with a value and the rows or files that it makes, or the test that shows its effect. A key
without an entry fails the walk.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import inspect
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prefect.utilities.callables import parameter_schema
from pydantic import BaseModel

from flows.apply import apply
from flows.fit import fit
from flows.job.job import Application, Job, make_job, merge_maps
from flows.job.refit_job import Refit
from flows.preprocess import preprocess
from flows.preview.job_preview import preview
from flows.refit import refit
from flows.run import session
from flows.sample.plugin import SamplesPlugin
from infra.clusters import local
from infra.clusters.model import OF_CLASS, Cluster
from tasks.core.contract import make_contract
from tasks.core.settings import OF_ROWS, WITHOUT_FIGURE, Check, Checks, Source
from tasks.dataset import Dataset
from tasks.errors import RowmillError
from tasks.gate.decide import judge
from tasks.gate.earlier_outputs import Past
from tasks.profile.output_profile import Profile, StepProfile
from tasks.workflow import Workflow
from tests.stages import Report, run_stages
from tests.tasks.gate.simulated import Shop, profile_of

ROOT = Path(__file__).parents[2]
TEXT = "a,b,c\n1,x,5\n2,y,4\n1,z,3\n3,w,2\n"
PLAIN = [[1, "x"], [2, "y"], [1, "z"], [3, "w"]]
TWENTY = "a,b\n" + "".join(f"{n},{n % 3}\n" for n in range(20))


@dataclass(frozen=True)
class Seen:
    """A key whose effect shows here: its value, and the job and the file of which it is a key.

    rows: those of the output with the key; None: the files differ from those without it.
    refused: part of the error that the key leads to.
    other: the value to compare with where the key cannot be left out.
    """

    value: Any
    rows: list[list[Any]] | None = None
    job: Mapping[str, Any] = field(default_factory=dict)
    text: str | bytes = TEXT
    refused: str = ""
    other: Any = None
    name: str = "in.csv"
    runs: int = 1


def split(**more: Any) -> dict[str, Any]:
    return {"source": {"split": {"by": "fraction", "valid": 0.5, **more}}, "output": {"shuffle": "none"}}


def by_time(**more: Any) -> dict[str, Any]:
    return split(by="time", column="c", valid=4, **more)


MADE = {"source": {"path": "data", "sample": {"name": "toy", "rows": 20}},
        "features": [{"columns": ["*"]}]}  # fmt: skip
OTHERS = {"other.csv": "a,b,c\n9,o,1\n", "short.csv": "a\n7\n", "2026-11-22.csv": "a,b\n9,o\n",
          "2026-11-23.csv": "a,b\n8,p\n"}  # fmt: skip
KEYED = {"shuffle": "key", "keys": ["b"]}
UNIQUE = {"source": {"unique": {"keys": ["a"]}}}
LESS = {"source": {"downsample": {"where": "a >= 0", "fraction": 0.5}}}
LOCAL = "tests/infra/test_clusters.py::"
SLURM = "tests/infra/test_slurm.py::"
BY_CLASS = "tests/infra/test_by_class.py::"
ON_CORES, ON_GPUS = SLURM + "test_the_job_of_a_worker_on_the_cores", SLURM + "test_the_job_of_workers_on_gpus"
PODS = "tests/infra/test_kubernetes.py::test_the_resource_is_what_the_crd_takes"
SSH = "tests/infra/test_ssh.py::"
TABLES = "tests/tasks/lake/test_writing.py::"
ICEBERG, DELTA = "tests/tasks/lake/test_iceberg.py::", "tests/tasks/lake/test_delta.py::"
BASE, DATES = "tests/tasks/job/test_base_version.py::", "tests/flows/test_dates.py::"

SOURCE: dict[str, Seen | str] = {
    "path": Seen("other.csv", [[9, "o"]]),
    "iceberg": ICEBERG + "test_a_snapshot_and_a_time_name_a_state_of_the_table",
    "delta": DELTA + "test_a_version_and_a_time_name_a_state_and_removed_files_are_not_read",
    "snapshot": ICEBERG + "test_a_snapshot_and_a_time_name_a_state_of_the_table",
    "version": DELTA + "test_a_version_and_a_time_name_a_state_and_removed_files_are_not_read",
    "as_of": ICEBERG + "test_a_snapshot_and_a_time_name_a_state_of_the_table",
    "since": ICEBERG + "test_what_was_added_since_a_snapshot_is_read_once",
    "valid": Seen("other.csv"),
    "format": Seen("tsv", [[1, "x"]], text="a\tb\n1\tx\n"),
    "columns": Seen(["a", "b"], [[1, "x"], [2, "y"]], text="1,x\n2,y\n"),
    "header": Seen(False, [["a", "b"], ["1", "x"]], {"features": [{"columns": ["f0", "f1"]}]}, "a,b\n1,x\n"),
    "schema": Seen({"a": "string"}, [[str(a), b] for a, b in PLAIN]),
    "null_values": Seen(["x"], [[1, None], [2, "y"], [1, "z"], [3, "w"]]),
    "missing": Seen("null", [[1, "x"], [2, "y"], [1, "z"], [3, "w"], [9, "o"], [7, None]],
                    {"source": {"path": ["in.csv", "other.csv", "short.csv"]}}),
    "delimiter": Seen(";", [[1, "x"]], text="a;b\n1;x\n"),
    "skip_rows": Seen(1, [[1, "x"]], text="made by hand\na,b\n1,x\n"),
    "skip_initial_space": Seen(False, [[1, " x"], [2, "y"]], text="a,b\n1, x\n2,y\n", other=True),
    "decimal": Seen(",", [[1.5, "x"]], text='a,b\n"1,5",x\n'),
    "quote": Seen("'", [[1, "x,y"]], text="a,b\n1,'x,y'\n"),
    "escape": Seen("\\", [[1, "x,y"]], text="a,b\n1,x\\,y\n"),
    "comment": Seen("#", [[1, "x"]], text="a,b\n#2,y\n1,x\n"),
    "bad_lines": Seen("skip", [[1, "x"], [3, "z"]], text="a,b\n1,x\n2,y,9\n3,z\n"),
    "encoding": Seen("latin-1", [[1, "é"]], text="a,b\n1,é\n".encode("latin-1")),
    "partition_size": "tests/tasks/sources/test_planning.py::"
                      "test_small_row_groups_are_joined_over_files_and_large_ones_cut",
    "part_mem_fraction": "tests/tasks/sources/test_planning.py::"
                         "test_a_partition_is_a_share_of_the_memory_of_the_smallest_worker",
    "max_record_bytes": Seen(4, refused="max_record_bytes"),
    "max_block_bytes": Seen(4, refused="max_block_bytes", name="in.csv.gz"),
    "parse_once": "tests/tasks/stages/test_parse_once.py::test_the_output_is_the_same_and_text_is_read_once",
    "explode": Seen("a", [[1, "x"], [2, "x"], [3, "z"]], {"source": {"schema": {"a": "list<int64>"}}},
                    "a,b\n1|2,x\n,y\n3,z\n"),
    "keys": Seen(["b"], text="a,b\n1,x\n2,y\n1,x\n"),
    "sort_by": Seen(["a"], [[2, "x"], [5, "x"]], {"source": {"keys": ["b"]}}, "a,b\n5,x\n2,x\n"),
    "filter": Seen("a > 1", [[2, "y"], [3, "w"]]),
    "strict": Seen(True, None, {"source": {"filter": "cast(b, 'int64') > 0 or a == 2"}}, refused="cast"),
    "unique.keys": Seen(["a"], [[1, "x"], [2, "y"], [3, "w"]], {"source": {"unique": {"keys": ["b"]}}}, other=["b"]),
    "unique.keep": Seen("last", [[2, "y"], [1, "z"], [3, "w"]], UNIQUE),
    "unique.by": Seen("c", [[2, "y"], [1, "z"], [3, "w"]], UNIQUE),
    "split.by": Seen("hash", None, split(together=["a"]), other="column"),
    "split.column": Seen("c", None, split(by="column", valid=[2], column="a"), other="a"),
    "split.together": Seen(["a"], None, split(by="hash", together=["b"]), TWENTY, other=["b"]),
    "split.valid": Seen(0.2, None, split(), TWENTY, other=0.5),
    "split.test": Seen(0.2, None, split(), TWENTY),
    "split.seed": Seen(1, None, split(), TWENTY),
    "split.unit": "tests/tasks/job/test_text_order.py::test_a_moment_splits_numbers_that_count_since_1970",
    "split.look_back": "tests/tasks/shuffle/test_time_splits.py::test_splits_by_time_look_back_where_the_rule_says_so",
    "downsample.where": Seen("a > 5", None, LESS, TWENTY, other="a > 15"),
    "downsample.fraction": Seen(0.25, None, LESS, TWENTY, other=0.5),
    "downsample.weight": Seen("w", None, LESS | {"features": [{"columns": ["a"]}, {"columns": ["w*"]}]}, TWENTY,
                              other="w2"),
    "downsample.seed": Seen(1, None, LESS, TWENTY),
    "storage_options": "tests/tasks/storage/test_remote.py::test_no_more_is_fetched_than_is_read",
    "sample.name": Seen("toy", None, MADE, other="wide"),
    "sample.rows": Seen(30, None, MADE, other=20),
    "sample.seed": Seen(1, None, MADE),
    "sample.columns": Seen(3, None, merge_maps(MADE, {"source": {"sample": {"name": "wide"}}})),
    "sample.valid": Seen(False, None, merge_maps(MADE, {"source": {"valid": "valid"}}),
                         refused="there are no validation data"),
    "sample.later": Seen(True, None, merge_maps(MADE, {"source": {"valid": "valid", "sample": {"name": "ecommerce"}}})),
}  # fmt: skip

CODED = [{"columns": ["b"], "ops": [{"op": "Categorify"}]}]
FEATURES: dict[str, Seen | str] = {
    "columns": Seen(["b", "a"], [["x", 1], ["y", 2], ["z", 1], ["w", 3]], other=["a", "b"]),
    "ops": Seen([{"op": "Rename", "postfix": "_id"}]),
    "keep": Seen(False, [[1], [2], [1], [3]], {"label": ["a"]}),
}
OUTPUT: dict[str, Seen | str] = {
    "path": Seen("elsewhere", other="out"),
    "shuffle": Seen("full", None, {}, TWENTY, other="none"),
    "storage_options": "tests/tasks/test_remote_outputs.py::test_what_interrupted_runs_have_left_is_removed",
    "seed": Seen(1, None, {"output": {"shuffle": "full"}}, TWENTY),
    "shuffle_groups": "tests/tasks/shuffle/test_shuffle_quality.py::"
    "test_worker_mixes_the_rows_of_a_group_evenly_and_no_others",
    "keys": Seen(["a"], None, {"output": KEYED}, TWENTY, other=["b"]),
    "sort_by": Seen(["a"], None, {"output": KEYED}, "a,b\n5,1\n4,1\n3,1\n"),
    "files": Seen(2, other=1),
    "files_per_worker": Seen(2, None, {"output": {"files": None}}, TWENTY),
    "rows_per_file": Seen(5, None, {"output": {"files": None}}, TWENTY),
    "format": Seen("csv"),
    "compression": Seen("zstd"),
    "row_group_size": Seen(2),
    "partition_on": Seen(["b"]),
    "on_existing": Seen("version"),
    "keep_versions": Seen(1, None, {"output": {"on_existing": "version"}}, runs=3),
    "iceberg": TABLES + "test_each_version_is_one_snapshot_of_a_table_of_iceberg",
    "delta": TABLES + "test_each_version_is_one_version_of_a_table_of_delta",
    "mode": TABLES + "test_partitions_of_a_table_of_delta_are_the_folders_of_the_output",
    "metadata_file": Seen(True),
}
RUN: dict[str, Seen | str] = {
    "exchange": "tests/tasks/stages/test_needs.py::test_the_disk_exchange_and_keys_need_scratch",
    "scratch": "tests/tasks/stages/test_needs.py::test_the_disk_exchange_and_keys_need_scratch",
    "retries": "tests/faults/test_killed_worker.py::test_what_passes_is_tried_again_by_prefect",
    "stalled_after": "tests/faults/test_stalled.py::test_a_stage_that_stands_still_once_is_tried_again",
    "min_partition_size": "tests/tasks/sources/test_planning.py::test_no_partition_is_smaller_than_the_job_says",
    "lock": "tests/faults/test_stopped.py::test_a_second_run_fails_or_waits_for_the_first",
    "keep_replaced": "tests/faults/test_commit.py::test_the_old_output_stays_for_its_readers_and_goes_with_a_later_run",
    "report": Seen(True, other=False),
    "price_per_hour": "tests/flows/test_report.py::test_the_manifest_says_what_the_stages_took",
    **{
        f"storage_price.{key}": "tests/tasks/report/test_series.py::"
        "test_requests_and_bytes_of_storages_are_summed_over_processes"
        for key in ("gb", "thousand_requests")
    },
    "profile": "tests/tasks/gate/test_profile.py::test_a_job_can_do_without",
    "performance_report": "tests/flows/test_report.py::test_the_report_of_dask_needs_no_network",
    "keep_partials": BASE + "test_a_base_that_was_saved_without_partials_is_refused",
    "date": Seen("2026-11-22", [[9, "o"]], {"source": {"path": "{date}.csv"}}, other="2026-11-23"),
    "timezone": DATES + "test_a_scheduled_run_has_the_date_of_its_schedule_and_keeps_it",
    "ready_by": "tests/flows/test_ready_by.py::test_a_run_whose_time_is_over_says_so_once",
    "ask_timeout": "tests/flows/test_gate.py::test_a_run_that_nobody_answers_in_time_fails",
    "if_empty": DATES + "test_a_day_without_data_may_be_skipped",
    "lineage": "tests/flows/test_collectors.py::test_a_run_is_told_by_its_begin_and_its_end",
    "metrics": "tests/flows/test_collectors.py::test_figures_reach_a_collector_of_opentelemetry",
}
CLUSTER: dict[str, Cluster | str] = {
    "kind": LOCAL + "test_a_gpu_asked_for_and_absent",
    "workers": Cluster(kind="cpu", workers=3),
    "threads_per_worker": Cluster(kind="cpu", threads_per_worker=7),
    "visible_devices": LOCAL + "test_only_the_gpus_asked_for_in_their_order",
    "protocol": Cluster(kind="cpu", protocol="tcp", unencrypted=True),
    "cuda_ipc": LOCAL + "test_allocator_and_spilling_fit_the_gpus_found",
    "interface": Cluster(kind="cpu", interface="lo"),
    "address": LOCAL + "test_a_running_scheduler_is_used_and_never_closed",
    "tls.ca": "tests/infra/test_address.py::test_certificates_that_are_not_there_or_none",
    "tls.cert": "tests/infra/test_address.py::test_certificates_that_are_not_there_or_none",
    "tls.key": "tests/infra/test_address.py::test_certificates_that_are_not_there_or_none",
    "unencrypted": Cluster(kind="cpu", unencrypted=True),
    "dashboard": Cluster(kind="cpu", dashboard=True),
    "memory_limit": Cluster(kind="cpu", memory_limit="1GB"),
    "device_memory_limit": LOCAL + "test_allocator_and_spilling_fit_the_gpus_found",
    "rmm_pool_size": LOCAL + "test_allocator_and_spilling_fit_the_gpus_found",
    "local_directory": Cluster(kind="cpu", local_directory="spilled"),
    "configuration": "tests/flows/test_access.py::test_a_deployment_names_a_configuration_of_the_host",
    "cluster_class": BY_CLASS + "test_a_run_on_workers_from_a_queue",
    "cluster_kwargs": BY_CLASS + "test_the_jobs_of_all_managers",
    "adapt_kwargs": BY_CLASS + "test_workers_that_come_and_go_in_the_middle_of_a_run_give_the_same_rows",
    "engine": BY_CLASS + "test_what_a_preview_expects_of_a_class",
    "adapt.minimum": LOCAL + "test_workers_come_and_go_between_the_bounds_of_adapt",
    "adapt.maximum": LOCAL + "test_workers_come_and_go_between_the_bounds_of_adapt",
    "resources": Cluster(kind="cpu", resources={"transform": {"disk": 1}}),
    "start_timeout": Cluster(kind="cpu", start_timeout=7),
    "ssh.hosts": SSH + "test_a_run_on_workers_started_over_ssh",
    **{f"ssh.{key}": SSH + "test_arguments_of_the_connection" for key in ("user", "port", "key", "known_hosts")},
    "ssh.python": SSH + "test_hosts_that_cannot_be_had",
    "ssh.gpus": SSH + "test_gpus_of_other_hosts_are_used_by_dask_cuda",
    **{f"slurm.{key}": ON_CORES for key in ("cores", "memory", "queue", "account", "walltime", "directives", "setup",
                                            "python", "shared_directory")},
    "slurm.gpus": ON_GPUS,
    "slurm.log_directory": ON_GPUS,
    **{f"kubernetes.{key}": PODS for key in ("image", "cores", "memory", "gpus", "service_account", "volumes",
                                             "node_selector", "tolerations")},
    "kubernetes.namespace": "tests/infra/test_kubernetes.py::test_an_operator_that_does_nothing",
    "kubernetes.shared_memory": PODS,
    "kubernetes.template": "tests/infra/test_kubernetes.py::test_a_template_is_laid_over_the_pods",
}  # fmt: skip
CHECK_SETTINGS = "tests/flows/test_every_key.py::test_each_setting_of_a_check_counts"
FEW_NIGHTS = "tests/tasks/gate/test_checks.py::test_few_nights_only_warn_unless_the_user_has_set_something"
ENTRIES: dict[str, Any] = {
    "recipe": "tests/flows/test_job.py::test_a_recipe_is_the_base_of_a_job_that_names_it",
    "label": Seen(["a"], [["x", 1], ["y", 2], ["z", 1], ["w", 3]], {"features": [{"columns": ["b"]}]}),
    "base": BASE + "test_ids_stay_and_new_values_come_behind_them",
    "fitted": "tests/flows/test_fit_apply.py::test_versions_of_a_fit_the_latest_is_applied",
    "contract": "tests/tasks/gate/test_checks.py::test_a_contract_stops_whatever_the_history",
    "refit.learn_from": "tests/tasks/job/test_changed_job.py::test_new_steps_learn_from_older_rows_first",
    "refit.forget": BASE + "test_values_without_an_id_are_forgotten_after_the_time",
    "refit.all": BASE + "test_learning_anew_keeps_ids_and_begins_the_history",
    "refit.again": "tests/tasks/job/test_learned_files.py::"
                   "test_a_night_that_comes_again_is_refused_unless_somebody_insists",
    "checks.on_finding": FEW_NIGHTS,
    "checks.nights": FEW_NIGHTS,
    **{f"checks.{name}.{key}": CHECK_SETTINGS for name in Checks.model_fields if name not in ("on_finding", "nights")
       for key in Check.model_fields},
    **{f"source.{key}": entry for key, entry in SOURCE.items()},
    **{f"features.{key}": entry for key, entry in FEATURES.items()},
    **{f"output.{key}": entry for key, entry in OUTPUT.items()},
    **{f"run.{key}": entry for key, entry in RUN.items()},
    **{f"cluster.{key}": entry for key, entry in CLUSTER.items()},
}  # fmt: skip
HERE = [key for key, entry in ENTRIES.items() if isinstance(entry, Seen)]
LOCAL_KEYS = [key for key, entry in CLUSTER.items() if isinstance(entry, Cluster)]


def models_of(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from models_of(inner)


def keys_of(model: type[BaseModel], above: str = "") -> Iterator[str]:
    """Every key of a model that is not a section, by its place: output.seed."""
    for name, of in model.model_fields.items():
        inner = [*models_of(of.annotation)]
        for section in inner:
            yield from keys_of(section, f"{above}{of.alias or name}.")
        if not inner:
            yield f"{above}{of.alias or name}"


@cache
def sources_of(module: str) -> dict[str, str]:
    """The source of each test of a module, with that of all other functions and values of the module that it names."""
    text = (ROOT / module).read_text()
    parts: dict[str, str] = {}
    tests: dict[str, str] = {}
    for node in ast.parse(text).body:
        names = [node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
        if isinstance(node, ast.Assign | ast.AnnAssign):
            names = [one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)]
        lines = [one.lineno for one in getattr(node, "decorator_list", [])]
        segment = "\n".join(text.splitlines()[min([node.lineno, *lines]) - 1 : node.end_lineno])
        for name in names:
            (tests if name.startswith("test_") else parts)[name] = segment
    return {name: of + "".join(part for known, part in parts.items() if known in of) for name, of in tests.items()}


def test_every_key_has_an_entry() -> None:
    keys = {*keys_of(Job), *keys_of(Application), *keys_of(Refit)}
    assert sorted(keys ^ ENTRIES.keys()) == []


@pytest.mark.parametrize("key", [key for key, entry in ENTRIES.items() if isinstance(entry, str)])
def test_the_test_of_a_key_exists_and_sets_it(key: str) -> None:
    module, _, name = ENTRIES[key].partition("::")
    assert re.search(rf"\b{key.rpartition('.')[2]}\b", sources_of(module)[name])


def job_with(key: str, entry: Seen, value: Any) -> dict[str, Any]:
    """The job of an entry with a value of its key; without the key where the value is None."""
    job = {"source": {"path": entry.name}, "features": [{"columns": ["a", "b"]}], "run": {"report": False},
           "output": {"path": "out", "files": 1, "shuffle": "none"}}  # fmt: skip
    job = merge_maps(job, entry.job)
    *sections, last = key.split(".")
    leaf = value
    for name in reversed(sections):
        value, last = {last: value}, name
    if last == "features":
        return job | {"features": [{**job["features"][0], **value}, *job["features"][1:]]}
    return job if leaf is None else merge_maps(job, {last: value})


def written(folder: Path, job: dict[str, Any], entry: Seen, monkeypatch: pytest.MonkeyPatch) -> Any:
    """(the rows of an output in order, the bytes of all its files by name) of a run; the text of its error."""
    folder.mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(folder)
    text = entry.text.encode() if isinstance(entry.text, str) else entry.text
    Path(entry.name).write_bytes(gzip.compress(text) if entry.name.endswith("gz") else text)
    for name, other in OTHERS.items():
        Path(name).write_text(other)
    try:
        for _ in range(entry.runs):
            made = make_job(job)
            run_stages(made.request("pandas"), plugins=[SamplesPlugin(made), Report()])
    except RowmillError as error:
        return str(error)
    return rows_and_files(folder)


def rows_and_files(folder: Path) -> tuple[list[list[Any]], dict[str, str]]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    inside = [path for path in files if path.relative_to(folder).parts[0] not in OTHERS | {"in.csv": ""}]
    data = [path for path in inside if path.name.startswith("part-")]
    rows = [[*row.values()] for path in data if path.suffix == ".parquet" for row in pq.read_table(path).to_pylist()]
    digests = {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path in data else ""
               for path in inside}  # fmt: skip
    return rows, digests


@pytest.mark.parametrize("key", HERE)
def test_a_key_changes_something(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "get_run_logger", lambda: logging.getLogger("rowmill"))
    entry = ENTRIES[key]
    with_key = written(tmp_path / "with", job_with(key, entry, entry.value), entry, monkeypatch)
    without = written(tmp_path / "without", job_with(key, entry, entry.other), entry, monkeypatch)
    if entry.refused:
        assert entry.refused in with_key
        assert entry.refused not in str(without)
        monkeypatch.chdir(tmp_path / "with")
        with pytest.raises(RowmillError, match=entry.refused):
            preview(make_job(job_with(key, entry, entry.value)))
        return
    assert not isinstance(with_key, str), with_key
    assert with_key != without
    if entry.rows is not None:
        assert with_key[0] == entry.rows


def started(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a local cluster is started with."""
    asked: dict[str, Any] = {}
    monkeypatch.setattr(local, "LocalCluster", lambda **options: asked.update(options))
    monkeypatch.setattr(local.forkserver, "use", lambda *_: {})
    local.cpu(cluster)
    return {name: value for name, value in asked.items() if name != "security"} | {"tls": "security" in asked}


@pytest.mark.parametrize("key", LOCAL_KEYS)
def test_a_key_of_a_local_cluster_reaches_it(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert started(CLUSTER[key], monkeypatch) != started(Cluster(kind="cpu"), monkeypatch)


# checks

NIGHTS = 10
STEPS = ("out_of_vocabulary", "unmatched", "failed_casts")
DISTANCES = ("l_infinity", "jensen_shannon", "psi")  # columns may be swapped where one of these is large
CONTRACT = make_contract({"columns": {"price": {"range": [None, 10]}}})


def of(table: pa.Table, **columns: Any) -> pa.Table:
    """The table with other values in some of its columns."""
    for name, values in columns.items():
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    return table


def far(table: pa.Table) -> pa.Table:
    return of(table, score=table["score"].to_numpy() + np.float32(1e6))


def elsewhere(table: pa.Table) -> pa.Table:
    return of(table, country=["ZZ" if n % 3 else "US" for n in range(len(table))])


FAULTS: dict[str, Callable[[pa.Table], pa.Table]] = {
    "rows": lambda table: table.slice(0, len(table) // 20),
    "nulls": lambda table: of(table, score=[None] * (len(table) // 2) + table["score"].to_pylist()[len(table) // 2 :]),
    "distinct": lambda table: of(table, product_id=table["product_id"].to_numpy() // 100_000),
    **dict.fromkeys(("extremes", "quantiles", "mean"), far),
    **dict.fromkeys(("l_infinity", "jensen_shannon", "psi", "new_values", "vanished_values"), elsewhere),
    "constant": lambda table: of(table, country=["US"] * len(table)),
    "swapped": lambda table: of(table, price=table["margin"].to_numpy(), margin=table["price"].to_numpy()),
    "duplicated": lambda table: pa.concat_tables([table, table]),
    "repeated": lambda table: pa.concat_tables([table, table.slice(0, len(table) // 5)]),
    "associations": lambda table: of(table, price=np.random.default_rng(1).permutation(table["price"].to_numpy())),
    "columns": lambda table: table.drop_columns("score"),
    "contract": lambda table: table,
    **dict.fromkeys(STEPS, lambda table: table),
}


def night(table: pa.Table, share: float) -> Profile:
    """The profile of a night in which a share of the values of a step is out of its vocabulary, unmatched or failed."""
    count = int(share * len(table))
    step = StepProfile("1:brand", "JoinExternal", ("brand",), len(table), *[count] * 3)
    return profile_of(table, [step])


@cache
def nights() -> tuple[Shop, tuple[Past, ...]]:
    """A shop and its good nights, newest first."""
    shop = Shop(3, rows=4_000)
    return shop, tuple(shop.past(n, night(shop.table(n), 0.01 + n / 1000)) for n in reversed(range(NIGHTS)))


@cache
def faulty(check: str) -> Profile:
    return night(FAULTS[check](nights()[0].table(NIGHTS)), 0.5 if check in STEPS else 0.02)


def found(check: str, **settings: Any) -> list[tuple[str, str]]:
    """(column, level) of the findings of a check, beside all others, or alone and with settings."""
    others = {name: Check(level="off") for name in FAULTS if name not in DISTANCES}
    asked = Checks(**others | {check: Check(**settings)}) if settings else Checks()
    shop, history = nights()
    contract = CONTRACT if check == "contract" else None
    verdict = judge(faulty(check), history, contract, asked, shop.day(NIGHTS))
    return [(finding.column, finding.level) for finding in verdict.findings if finding.check == check]


@pytest.mark.promise(
    "A check with a figure also has a `threshold`, and a check of columns has `columns`",
    "flows/KEYS.md#checks",
)
@pytest.mark.parametrize("check", FAULTS)
def test_each_setting_of_a_check_counts(check: str) -> None:
    """`threshold`, `level` and `columns` of each check change what is found, or are refused."""
    usual = found(check)
    (plain,) = {level for _, level in usual}
    assert plain == ("stop" if check == "contract" else "warn")
    assert {level for _, level in found(check, level="ask")} == {"ask"}
    assert found(check, level="off") == []
    if check in WITHOUT_FIGURE:
        with pytest.raises(ValueError, match=f"{check} takes no threshold"):
            found(check, threshold=1)
    else:
        assert found(check, threshold=1e9) == []
    if check in OF_ROWS:
        with pytest.raises(ValueError, match=f"{check} takes no columns"):
            found(check, columns=["price"])
    else:
        assert found(check, columns=["seconds"]) == [one for one in usual if one[0] == "seconds"] != usual


def test_every_check_is_looked_at() -> None:
    assert sorted(FAULTS) == sorted({*Checks.model_fields} - {"on_finding", "nights"})


# settings that mean nothing where they stand


@pytest.mark.promise("A key that has no effect where it stands is refused")
@pytest.mark.promise("Its workers stay as they are: keys that say how workers start are refused")
@pytest.mark.promise("any other codec is refused", "flows/KEYS.md#output")
@pytest.mark.parametrize(
    ("job", "said"),
    [
        ({"output": {"shuffle_groups": 2}}, "shuffle_groups belongs to shuffle: worker; none would not look at it"),
        ({"output": {"format": "csv", "row_group_size": 5}}, "row_group_size belongs to format: parquet or arrow"),
        ({"output": {"format": "csv", "compression": "zstd"}}, "files of format: csv are never compressed"),
        ({"output": {"format": "arrow", "compression": "gzip"}}, "are compressed with zstd or lz4, or not at all"),
        ({"source": {"split": {"by": "time", "column": "c", "valid": 4, "seed": 1}}}, "by: time takes no seed"),
        ({"source": {"sort_by": ["a"]}}, "source.sort_by belongs to source.keys"),
        ({"source": {"path": "in.parquet", "columns": ["a", "b"]}}, "the format parquet takes no columns"),
        ({"source": {"path": "in.parquet", "header": False}}, "the format parquet takes no header"),
        ({"source": {"path": "in.parquet", "null_values": ["x"]}}, "the format parquet takes no null_values"),
        ({"checks": {"rows": {"columns": ["a"]}}}, "rows takes no columns"),
        ({"cluster": {"kind": "address", "address": "tls://h:1", "workers": 2}}, "leave out `workers`"),
        ({"cluster": {"kind": "kubernetes", "memory_limit": "1GB",
                      "kubernetes": {"image": "i", "cores": 1, "memory": "1GB"}}}, "leave out `memory_limit`"),
    ],
)  # fmt: skip
def test_a_setting_without_effect_is_refused_by_run_and_preview(
    job: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "get_run_logger", lambda: logging.getLogger("rowmill"))
    entry = Seen(None)
    pq.write_table(pa.table({"a": [1], "b": ["x"]}), tmp_path / "in.parquet")
    whole = merge_maps(job_with("recipe", entry, None), job)
    assert said in written(tmp_path, whole, entry, monkeypatch)
    with pytest.raises(RowmillError, match=re.escape(said)):
        preview(make_job(whole))


def test_values_of_a_fit_on_text_are_no_setting_of_a_later_parquet_file(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("a,b\n1,x\n2,NA\n")
    pq.write_table(pa.table({"a": [3], "b": ["NA"]}), tmp_path / "later.parquet")
    workflow = Workflow(["a", "b"]).fit(Dataset(str(tmp_path / "in.csv"), null_values=["NA"]))
    later = Dataset(str(tmp_path / "later.parquet"))
    assert workflow.transform(later).head().to_dict("list") == {"a": [3], "b": ["NA"]}


# form, Python, preview


def taken_by(schema: Mapping[str, Any], key: str) -> bool:
    """Whether a form has a field for a key, shown or hidden."""
    for part in key.split("."):
        hidden = schema.get("patternProperties", {})
        inner = [schema.get("properties", {}).get(part), *(of for name, of in hidden.items() if re.match(name, part))]
        known = [one for one in inner if one is not None]
        if not known:
            return False
        (schema,) = known
        for choice in schema.get("anyOf", ()):
            if choice.get("properties"):
                schema = choice
    return True


@pytest.mark.parametrize(("flow", "model"), [(preprocess, Job), (fit, Job), (apply, Application), (refit, Refit)],
                         ids=lambda one: getattr(one, "name", None))  # fmt: skip
def test_every_key_has_a_place_in_the_form(flow: Any, model: type[BaseModel]) -> None:
    schema = parameter_schema(flow).model_dump()
    keys = [key for key in keys_of(model) if not key.startswith("features.")]  # YAML in the form
    commands = [f"cluster.{key}" for key in OF_CLASS]  # the host has them under a name
    assert [key for key in keys if not taken_by(schema, key)] == commands


PYTHON = {
    "iceberg": "format", "delta": "format", "path": "source",
    "valid": "a second Dataset", "filter": "ops.Filter", "sample": "rowmill sample",
    "keys": Dataset.shuffle_by_keys, "sort_by": Dataset.shuffle_by_keys, "unique": Dataset.unique,
    "split": Dataset.split, "downsample": Dataset.downsample, "strict": Dataset.downsample,
    "parse_once": Dataset.persist,
}  # fmt: skip


def test_every_key_of_a_source_is_a_parameter_of_a_data_set_or_has_another_name_there() -> None:
    parameters = inspect.signature(Dataset).parameters
    keys = {of.alias or name for name, of in Source.model_fields.items()}
    assert sorted(keys - set(parameters)) == sorted(PYTHON)
    for name in ("unique", "split", "downsample"):
        (model,) = models_of(Source.model_fields[name].annotation)
        assert {*model.model_fields} <= {*inspect.signature(PYTHON[name]).parameters}


@pytest.mark.parametrize("name", ["max_record_bytes", "max_block_bytes"])
def test_a_data_set_has_the_limits_of_readers(name: str, tmp_path: Path) -> None:
    (tmp_path / "in.csv.gz").write_bytes(gzip.compress(TEXT.encode()))
    path = str(tmp_path / "in.csv.gz")
    assert Dataset(path).num_rows == 4
    with pytest.raises(RowmillError, match=name):
        _ = Dataset(path, **{name: 4}).num_rows


@pytest.mark.parametrize("key", [key for key, entry in OUTPUT.items() if isinstance(entry, Seen) and key != "path"])
def test_a_key_of_an_output_changes_something_from_python(key: str, tmp_path: Path) -> None:
    entry = OUTPUT[key]
    results = []
    for value in (entry.value, entry.other):
        folder = tmp_path / str(len(results))
        folder.mkdir()
        (folder / "in.csv").write_text(str(entry.text))
        job = job_with(f"output.{key}", entry, value)["output"]
        settings = {name: given for name, given in job.items() if name != "path" and given is not None}
        for _ in range(entry.runs):
            rows = Workflow(["a", "b"]).fit_transform(Dataset(str(folder / "in.csv")))
            rows.to_parquet(str(folder / "out"), **settings)
        results.append(rows_and_files(folder))
    assert results[0] != results[1]


def test_a_preview_reads_as_the_run_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sample of a preview has the rows of the output, for each key of the source that says what they are."""
    monkeypatch.setattr(session, "get_run_logger", lambda: logging.getLogger("rowmill"))
    for key in HERE:
        entry = ENTRIES[key]
        if not key.startswith("source.") or not entry.rows or "unique" in key:  # no preview looks at all rows
            continue
        job = job_with(key, entry, entry.value)
        written(tmp_path / key, job, entry, monkeypatch)
        assert [[*row.values()] for row in preview(make_job(job)).sample.after.to_pylist()] == entry.rows, key
