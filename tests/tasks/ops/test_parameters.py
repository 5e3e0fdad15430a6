"""Facts about parameters: they are the same after saving and loading, in strict JSON."""

from __future__ import annotations

import ast
import datetime
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flows.commands.launch import job_of
from flows.job.job import load_job
from infra.orchestration.deployment_file import read_file
from tasks import ops
from tasks.dataset import Dataset
from tasks.errors import JobError
from tasks.ops.base import Operator, make_operator
from tasks.ops.docstrings import docstring_of
from tasks.workflow import Workflow

INF = math.inf
DAY = datetime.date(2020, 1, 2)
DELTA = datetime.timedelta(seconds=3, microseconds=5)


def read_strictly(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


BUILT_IN = sorted(name for name in Operator.registry if ":" not in name)


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_docstring_lists_exactly_the_parameters_with_their_defaults(name: str) -> None:
    cls = Operator.registry[name]
    listed = docstring_of(cls).parameters
    required = {p.name for p in listed.values() if p.default is None}
    defaults = {p.name: ast.literal_eval(p.default) for p in listed.values() if p.default is not None}
    fields = cls.model_fields.items()
    assert list(listed) == list(cls.model_fields)
    assert required == {n for n, f in fields if f.is_required()}
    assert repr(defaults) == repr({n: f.get_default(call_default_factory=True) for n, f in fields if n in defaults})
    assert [p.name for p in listed.values() if not p.meaning or len(p.meaning) > 2 * 112] == []


@pytest.mark.parametrize(
    "op",
    [
        ops.FillMissing(False), ops.FillMissing(True), ops.FillMissing(0.0), ops.FillMissing(-0.0),
        ops.FillMissing(INF), ops.FillMissing(-INF), ops.FillMissing("inf"), ops.FillMissing(0),
        ops.ListSlice(0, 2, pad=True, pad_value=False), ops.ListSlice(0, 2, pad=True, pad_value=INF),
        ops.Categorify(vocabs=[INF, 0.5, -INF]), ops.Categorify(vocabs={"x": [False, True]}),
        ops.Categorify(vocabs=[["a", INF], [None, False]], combo=True),
        ops.Bucketize([-INF, 0, 1.0, INF]), ops.Clip(-INF, 0), ops.Clip(max_value=2**60 + 1),
        ops.TargetEncoding("y", target_mean=INF), ops.TargetEncoding("y", target_mean={"y": -INF}, p_smooth=0.0),
        ops.AddMetadata({"most": INF, "sure": False, "none": 0, "in": [{"deep": -INF}]}),
        ops.Normalize(), ops.DataStats(top=0),
    ],
    ids=repr,
)  # fmt: skip
def test_parameters_are_the_same_after_a_round_through_json(op: Operator) -> None:
    loaded = make_operator(read_strictly(json.dumps(op.to_json(), allow_nan=False)))
    assert repr(loaded) == repr(op)  # tells False from 0, 0.0 from -0.0


def test_a_parameter_as_its_default_is_left_out_of_the_json() -> None:
    assert ops.FillMissing(0, add_binary_cols=False).to_json() == {"op": "FillMissing"}
    assert ops.FillMissing(False).to_json() == {"op": "FillMissing", "fill_value": False}
    assert ops.FillMissing(INF).to_json() == {"op": "FillMissing", "fill_value": {"float": "inf"}}


@pytest.mark.parametrize(
    ("op", "values", "dtype"),
    [
        (ops.FillMissing(False), [True, None], pa.bool_()),
        (ops.FillMissing(INF), [1.5, None], pa.float64()),
        (ops.FillMissing(-INF), [1.5, None], pa.float32()),
        (ops.FillMissing(DAY), [None, DAY], pa.date32()),
        (ops.FillMissing(datetime.time(1, 2, 3, 4)), [None], pa.time64("us")),
        (ops.FillMissing(datetime.datetime(2020, 1, 2, 3)), [None], pa.timestamp("us")),
        (ops.FillMissing(DELTA), [None, DELTA], pa.duration("us")),
        (ops.FillMissing(Decimal("1.50")), [None], pa.decimal128(9, 2)),
        (ops.ListSlice(0, 3, pad=True, pad_value=False), [[True], []], pa.list_(pa.bool_())),
        (ops.ListSlice(0, 3, pad=True, pad_value=INF), [[1.0], []], pa.list_(pa.float64())),
        (ops.Categorify(vocabs=[INF, 1.5]), [1.5, INF, -INF], pa.float64()),
        (ops.Categorify(vocabs=[DELTA]), [DELTA, None], pa.duration("us")),
        (ops.Categorify(vocabs=[Decimal("1.50"), 2]), [Decimal("1.50"), Decimal(2)], pa.decimal128(9, 2)),
        (ops.FillMedian(), [INF, INF, None], pa.float64()),
        (ops.QuantileBucketize(3), [-INF, -INF, 0.0, INF, INF], pa.float64()),
        (ops.DataStats(), [-INF, 1.0, INF], pa.float64()),
        (ops.Normalize("float64"), [1e160, -1e160, None], pa.float64()),
        (ops.NormalizeMinMax(), [-1.7e308, 1.7e308], pa.float64()),
        (ops.PCA(1), [1e200, -1e200], pa.float64()),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_saved_workflow_does_what_it_did(
    op: Operator, values: list[Any], dtype: pa.DataType, engine: str, tmp_path: Path
) -> None:
    table = pa.table({"x": pa.array(values, dtype)})
    workflow = Workflow(["x"] >> op).fit(Dataset(table, engine=engine))  # type: ignore[operator]
    workflow.save(tmp_path / "fitted")
    for name in ("workflow.json", "state.json"):
        read_strictly((tmp_path / "fitted" / name).read_text())
    loaded = Workflow.load(tmp_path / "fitted")
    assert loaded.transform(table).equals(workflow.transform(table))
    workflow.transform(Dataset(table, engine=engine)).to_parquet(tmp_path / "out")
    read_strictly((tmp_path / "out" / "_manifest.json").read_text())


def test_an_infinite_target_mean_is_saved(engine: str, tmp_path: Path) -> None:
    table = pa.table({"shop": ["a", "b"], "y": [1.0, 2.0]})
    encoding = ops.TargetEncoding("y", target_mean=INF, p_smooth=0.0, kfold=1)
    workflow = Workflow(["shop"] >> encoding).fit(Dataset(table, engine=engine))
    workflow.save(tmp_path / "fitted")
    assert Workflow.load(tmp_path / "fitted").transform(pa.table({"shop": ["a", "new"]})).to_pydict() == {
        "TE_shop_y": [1.0, INF]
    }


def test_an_infinite_property_stands_in_schema_manifest_and_files(tmp_path: Path) -> None:
    table = pa.table({"x": [1.0]})
    workflow = Workflow(["x"] >> ops.AddMetadata({"most": INF})).fit(table)
    workflow.save(tmp_path / "fitted")
    assert Workflow.load(tmp_path / "fitted").output_schema["x"].properties == {"most": INF}
    described = workflow.output_schema.to_json()
    assert read_strictly(json.dumps(described))[0]["most"] == {"float": "inf"}


@pytest.mark.promise("In a job file an infinity is `.inf`", "flows/KEYS.md#expressions-and-numbers")
def test_infinities_of_a_job_file_reach_the_flow(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        "source: {path: data.csv}\noutput: {path: out}\nfeatures:\n"
        "  - {columns: [x], ops: [{op: FillMissing, fill_value: .inf}, {op: Clip, max_value: {float: '-inf'}}]}\n"
    )
    data = job_of(str(job), [])
    assert read_strictly(json.dumps(data))["features"][0]["ops"][0]["fill_value"] == {"float": "inf"}
    fill, clip = (make_operator(spec) for spec in data["features"][0]["ops"])
    assert (fill.fill_value, clip.max_value) == (INF, -INF)  # type: ignore[attr-defined]
    assert load_job(str(job), []).graph()


@pytest.mark.promise("in deployments and in saved workflows it is `{float: inf}`")
def test_an_infinity_in_a_file_of_deployments_is_refused_before_the_server_makes_it_null(tmp_path: Path) -> None:
    file = tmp_path / "prefect.yaml"
    file.write_text(
        "deployments:\n- name: nightly\n  entrypoint: flows.preprocess.preprocess\n"
        "  parameters: {features: [{columns: [x], ops: [{op: Clip, max_value: .inf}]}]}\n"
    )
    with pytest.raises(JobError, match=r"(?s)JSON, which has no inf.*write \{float: inf\}"):
        read_file(file)
    file.write_text(file.read_text().replace(".inf", "{float: inf}"))
    assert read_file(file)["deployments"][0]["name"] == "nightly"
