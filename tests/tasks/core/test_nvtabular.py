"""Each name of NVTabular is refused where it is typed, with what is written here."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pyarrow as pa
import pytest
import rowmill
from rowmill import Dataset, Schema, Tags, Workflow, ops

from tasks.core.nvtabular import WRITE
from tasks.errors import JobError
from tasks.graph.node import Node, as_node
from tasks.ops.base import Operator, make_operator

TABLE = pa.table({"x": [1.0, 2.0]})
PARAMETER = re.compile(r"(\w+)\((\w+)=(.*)\)")
OBJECTS = {"Dataset": Dataset(TABLE), "Workflow": Workflow(["x"]), "Node": as_node(["x"]), "Tags": Tags}
OBJECTS["Schema"] = Schema()
VALUES = {"None": None, "True": True, "False": False}


def type_parameter(owner: str, name: str, value: str) -> None:
    """Type a parameter of NVTabular, as `Owner(name=value)`, where its owner is called."""
    typed = {name: VALUES.get(value, value.strip("'") or "a")}
    if owner == "Dataset":
        Dataset("a.parquet", **typed)
    elif owner == "Workflow":
        Workflow(**typed)
    elif owner == "to_parquet":
        Workflow(["x"]).fit_transform(TABLE).to_parquet("out", **typed)
    else:
        make_operator({"op": "LogOp" if owner == "Operator" else owner, **typed})


@pytest.mark.parametrize("written", WRITE)
def test_each_name_is_refused_with_what_is_written_here(written: str) -> None:
    advice = re.escape(
        f" is a name of NVTabular: {'' if WRITE[written].startswith('leave') else 'write '}{WRITE[written]}"
    )
    if match := PARAMETER.fullmatch(written):
        with pytest.raises(JobError, match=advice):
            type_parameter(*match.groups())
        return
    owner, _, name = written.rpartition(".")
    if owner in ("nvt", "nvt.ops"):
        with pytest.raises(JobError, match=advice):
            getattr(rowmill if owner == "nvt" else ops, name)
        return
    assert not hasattr(OBJECTS[owner], name)
    with pytest.raises(AttributeError, match=advice):
        getattr(OBJECTS[owner], name)


def test_an_import_and_a_job_are_refused_in_the_same_words() -> None:
    do = "'LambdaOp' is a name of NVTabular: write Lambda(function), or Lambda(expression=)"
    with pytest.raises(JobError) as error:
        from rowmill.ops import LambdaOp  # type: ignore[attr-defined]  # noqa: F401
    assert error.value.do == do
    with pytest.raises(JobError) as error:
        make_operator({"op": "LambdaOp"})
    assert error.value.do == do


def test_the_result_of_a_transform_knows_the_names_of_a_data_set() -> None:
    with pytest.raises(AttributeError, match=r"write to_ddf\(\).compute\(\)"):
        _ = Workflow(["x"]).fit_transform(TABLE).compute  # type: ignore[attr-defined]


def test_other_names_are_refused_as_python_and_near_spellings_do(tmp_path: Path) -> None:
    with pytest.raises(AttributeError, match="'Workflow' object has no attribute 'fitt'"):
        _ = OBJECTS["Workflow"].fitt
    with pytest.raises(AttributeError, match=r"module 'rowmill\.ops' has no attribute 'Clipp'"):
        _ = ops.Clipp
    with pytest.raises(AttributeError, match="CATEGORIC"):
        _ = Tags.CATEGORIC  # type: ignore[attr-defined]
    with pytest.raises(JobError, match=r"'nodez' is not a parameter of Workflow\n.*\n  do: did you mean 'nodes'"):
        Workflow(nodez=["x"])  # type: ignore[arg-type]
    with pytest.raises(JobError, match="Workflow needs nodes"):
        Workflow()
    assert repr(pickle.loads(pickle.dumps(Workflow(["x"])))) == "Workflow(operators=[], not fitted)"  # noqa: S301


def test_an_error_within_a_property_is_not_hidden() -> None:
    class Broken(Dataset):
        @property
        def extent(self) -> int:
            return len(self.missing_part)

    with pytest.raises(AttributeError, match="'Broken' object has no attribute 'missing_part'"):
        _ = Broken(TABLE).extent


def test_an_operator_of_a_users_own_keeps_its_words() -> None:
    class Normalize(Operator):
        dtype: str = "float32"

    with pytest.raises(JobError, match="did you mean 'dtype'"):
        Normalize(out_dtype="float64")
    assert isinstance(OBJECTS["Node"], Node)
