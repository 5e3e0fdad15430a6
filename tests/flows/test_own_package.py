"""Operators of installed packages: the page OWN_OPERATOR.md as a package, in jobs, on workers, and what is refused."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from rowmill.testing import check_operator

from flows.job.job import make_job
from infra.workers import forkserver
from tasks import ops
from tasks.cluster.dask_pool import DaskPool
from tasks.dataset import Dataset
from tasks.errors import HostError, JobError
from tasks.job.fingerprints import users_code
from tasks.ops.base import Learned, make_operator
from tasks.ops.installed import entries
from tasks.ops.user_code import VARIABLE
from tasks.workflow import Workflow
from tests.clusters import IMPORTS
from tests.commands import rowmill
from tests.conftest import python_path
from tests.flows.runs import rows_of
from tests.frames import to_list
from tests.stages import run_stages
from tests.tasks.ops.fitting import learned, transformed

pytestmark = pytest.mark.xdist_group("faults")
PAGE = (Path(__file__).resolve().parents[2] / "tasks/ops/OWN_OPERATOR.md").read_text()
OPERATORS, KERNELS, TESTED = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(PROJECT,) = [tomllib.loads(text) for text in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)]
(JOB,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
TABLE = {"x": [1, None, 4, 2], "y": [5.0, 20.0, None, -1.0]}
SHARES = {"x": [0.25, None, 1.0, 0.5], "y": [0.5, 2.0, None, -0.1]}
Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts a package with entry points where Python searches for packages, as pip would, until the test ends."""
    before = set(sys.modules)

    def put(name: str, points: dict[str, str], code: str = OPERATORS, version: str = "1.0") -> Path:
        site = tmp_path / f"site-{name}"
        (site / name).mkdir(parents=True, exist_ok=True)
        (site / name / "__init__.py").write_text("")
        (site / name / "operators.py").write_text(code)
        about = site / f"{name}-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        lines = [f"{point} = {value}\n" for point, value in points.items()]
        (about / "entry_points.txt").write_text("[rowmill.operators]\n" + "".join(lines))
        forkserver.start(IMPORTS.tasks)  # with the variables of the session: other tests of this process need it so
        monkeypatch.syspath_prepend(site)
        monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{python_path()}")
        return site

    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.delenv(VARIABLE)
    yield put
    for module in set(sys.modules) - before:
        if module.partition(".")[0] in ("shares", "other"):
            del sys.modules[module]


@pytest.fixture
def shares(install: Install) -> Path:
    """The package of the page."""
    project = PROJECT["project"]
    return install(project["name"], project["entry-points"]["rowmill.operators"], version=project["version"])


@pytest.mark.system
@pytest.mark.promise("`check_operator` tries on a small table of yours what every operator keeps to")
def test_the_page_s_own_test_passes(shares: Path) -> None:
    names = {name: getattr(import_module("shares.operators"), name) for name in ("Ratio", "ShareOfLargest")}
    exec(TESTED, names)
    names["test_shares"]()


@pytest.mark.system
@pytest.mark.promise("Both run on the CPU and on the GPU", "tasks/ops/OWN_OPERATOR.md#the-operators")
def test_the_operators_of_the_page_learn_in_pieces(shares: Path, engine: str) -> None:
    largest = make_operator("ShareOfLargest")
    graph = (["x"] >> largest) + (["y"] >> make_operator({"op": "Ratio", "whole": 10}))
    assert transformed(graph, pa.table(TABLE), engine) == SHARES
    assert isinstance(largest, Learned)
    for cuts in ((), (1,), (1, 2, 3)):
        assert learned(largest, pa.table(TABLE), ["x"], engine, cuts) == {"largest": 4.0}
    assert learned(largest, pa.table({"x": pa.nulls(2, pa.int64())}), ["x"], engine) == {"largest": None}


@pytest.mark.system
@pytest.mark.promise("a job says `op: ShareOfLargest`, in a file, in the form or in a deployment")
def test_the_job_of_the_page_runs_on_workers_of_its_own_cluster(shares: Path, tmp_path: Path, engine: str) -> None:
    from distributed import Client

    from infra.clusters.model import Cluster
    from tests.clusters import make_cluster

    pq.write_table(pa.table(TABLE), tmp_path / "data.parquet")
    job = yaml.safe_load(JOB)
    job["source"]["path"] = str(tmp_path / "data.parquet")
    out = tmp_path / "out"
    job["output"] = {"path": str(out), "shuffle": "none", "files": 1}
    asked = Cluster(kind="cuda" if engine == "cudf" else "cpu", workers=1)
    with make_cluster(asked) as cluster, Client(cluster, set_as_default=False) as client, client.as_current():
        run_stages(make_job(job).request(engine), pool=DaskPool(client))

    assert rows_of(out).to_pydict() == SHARES
    assert "shares.operators:ShareOfLargest" in (out / "_workflow" / "workflow.json").read_text()


@pytest.mark.system
@pytest.mark.promise(
    "numba compiles it, for the CPU and, with `numba.cuda`, for GPUs",
    "tasks/ops/OWN_OPERATOR.md#a-kernel",
)
@pytest.mark.filterwarnings("ignore:.*Grid size")  # numba-cuda warns of so few rows
def test_a_kernel_is_the_function_of_a_lambda(shares: Path, tmp_path: Path, engine: str) -> None:
    (shares / "shares" / "kernels.py").write_text(KERNELS)
    km = ops.Lambda("shares.kernels:kilometres", dtype="float64", name="km", dependency=["longitude"])
    longitudes = pa.array([13.405, 13.405, 0.0, 3.0, None], pa.float32())
    table = pa.table({"latitude": [52.52, 0.0, -90.0, None, 0.0], "longitude": longitudes})
    Workflow(["latitude"] >> km).fit(Dataset(table, engine=engine)).save(tmp_path / "fitted")

    (frame,) = Workflow.load(tmp_path / "fitted").transform(Dataset(table, engine=engine)).frames()
    to_the_equator, to_the_pole = 6371 * math.radians(52.52), 6371 * math.radians(142.52)
    assert to_list(frame["km"]) == [*map(about, [0.0, to_the_equator, to_the_pole]), None, None]


def about(kilometres: float) -> Any:
    return pytest.approx(kilometres, abs=1e-3)


@pytest.mark.system
@pytest.mark.promise("a package is imported when a job names its class")
def test_it_is_imported_when_its_operator_is_named(shares: Path) -> None:
    make_operator({"op": "Clip", "min_value": 0})
    assert [entry.name for entry in entries()] == ["Ratio", "ShareOfLargest"]
    assert "shares" not in sys.modules
    assert make_operator("Ratio").to_json() == {"op": "shares.operators:Ratio"}
    assert "shares.operators" in sys.modules


@pytest.mark.system
@pytest.mark.promise("a package is imported when a job names its class")
def test_help_looks_at_no_package(shares: Path) -> None:
    code = "import sys; sys.argv = ['rowmill', '--help']\nfrom rowmill.cli import app\n"
    code += "try:\n    app()\nfinally:\n    print({'tasks.ops.installed', 'shares'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.mark.system
@pytest.mark.promise("`rowmill ops` lists the operator with its package")
def test_ops_lists_and_explains_it(shares: Path) -> None:
    listed = rowmill("ops").output
    assert re.search(r"ShareOfLargest +merged +shares 1\.0 +x / the largest x of the training rows", listed)
    explained = rowmill("ops", "Ratio").output
    assert "whole" in explained
    assert "{op: Ratio}" in explained


@pytest.mark.system
@pytest.mark.promise("it offers all operators that the module defines", "tasks/ops/OWN_OPERATOR.md#a-package")
def test_a_module_offers_all_that_it_defines(install: Install) -> None:
    install("shares", {"all": "shares.operators"})
    assert type(make_operator("Ratio")).__module__ == "shares.operators"
    with pytest.raises(JobError, match=r"unknown operator 'Ratios'\n.*did you mean 'Ratio'"):
        make_operator("Ratios")


BROKEN = {
    "gone": ({"Own": "shares.gone:Own"}, "", r"No module named 'shares.gone'"),
    "raises": ({"Own": "shares.operators:Own"}, "1 / 0", "ZeroDivisionError: division by zero"),
    "ends": ({"Own": "shares.operators:Own"}, "raise SystemExit(3)", "SystemExit: 3"),
    "no class": ({"Own": "shares.operators:Own"}, "", "has no attribute 'Own'"),
    "no operator": ({"Own": "shares.operators:Own"}, "class Own: ...", r"not a subclass of rowmill\.ops\.Operator"),
    "other name": ({"Own": "shares.operators:Ratio"}, OPERATORS, "the class is called Ratio, the entry point Own"),
}


@pytest.mark.system
@pytest.mark.promise("`cannot be used`")
@pytest.mark.parametrize(("points", "code", "why"), BROKEN.values(), ids=list(BROKEN))
def test_a_broken_package_is_named_with_its_entry_point_and_the_cure(
    points: dict[str, str], code: str, why: str, install: Install
) -> None:
    install("shares", points, code)
    with pytest.raises(HostError, match=why) as refused:
        make_operator("Own")
    assert refused.value.what == "the operators of the package shares cannot be used"
    assert refused.value.where == f"package shares 1.0, entry point Own = {points['Own']} of rowmill.operators"
    assert "pip install --upgrade shares" in refused.value.do
    shown = rowmill("ops")
    assert shown.exit_code == 0
    assert "the operators of the package shares cannot be used" in shown.output


@pytest.mark.system
def test_a_broken_module_is_named_where_an_operator_is_not_known(install: Install) -> None:
    install("shares", {"all": "shares.operators"}, "1 / 0")
    with pytest.raises(HostError, match=r"unknown operator 'Own'\n(.|\n)*package shares 1.0(.|\n)*ZeroDivision"):
        make_operator("Own")
    make_operator({"op": "Clip", "min_value": 0})


@pytest.mark.system
@pytest.mark.promise("The name of a built-in operator is refused, and so is a name that two packages offer")
@pytest.mark.parametrize(
    "points", [{"Clip": "shares.operators:Clip"}, {"all": "shares.operators"}], ids=["class", "module"]
)
def test_the_name_of_a_built_in_operator_is_refused(points: dict[str, str], install: Install) -> None:
    install("shares", points, "from rowmill.ops import Operator\nclass Clip(Operator): ...\n")
    with pytest.raises(HostError, match="the name of a built-in one"):
        make_operator("Clip" if "Clip" in points else "Own")
    assert make_operator("shares.operators:Clip").to_json() == {"op": "shares.operators:Clip"}
    assert "pip uninstall shares" in rowmill("ops").output


@pytest.mark.system
@pytest.mark.promise("The name of a built-in operator is refused, and so is a name that two packages offer")
@pytest.mark.parametrize("point", ["Ratio", "all"])
def test_a_name_of_two_packages_is_refused(point: str, install: Install) -> None:
    for name in ("shares", "other"):
        install(name, {point: f"{name}.operators{':Ratio' if point == 'Ratio' else ''}"})
    with pytest.raises(JobError, match=r"two packages offer an operator 'Ratio'") as refused:
        make_operator("Ratio")
    assert "package other 1.0" in refused.value.where
    assert "package shares 1.0" in refused.value.where
    assert "op: other.operators:Ratio" in refused.value.do


@pytest.mark.system
@pytest.mark.promise("a module that is not listed is not imported", "tasks/ops/OWN_OPERATOR.md#in-a-deployment")
@pytest.mark.parametrize(
    "points", [{"Ratio": "shares.operators:Ratio"}, {"all": "shares.operators"}], ids=["class", "module"]
)
def test_in_a_deployment_its_module_has_to_be_allowed(
    points: dict[str, str], install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("shares", points)
    job = {"source": {"path": str(tmp_path / "in")}, "output": {"path": str(tmp_path / "out")},
           "features": [{"columns": ["x"], "ops": [{"op": "Ratio"}]}]}  # fmt: skip
    for allowed in ("", "share,shares.others"):
        monkeypatch.setenv(VARIABLE, allowed)
        with pytest.raises(HostError, match="may not be used") as refused:
            make_job(job)
        assert f"add shares.operators to {VARIABLE}" in refused.value.do
        assert "shares" not in sys.modules
    monkeypatch.setenv(VARIABLE, "shares")
    make_job(job)


@pytest.mark.system
def test_another_version_is_other_code(install: Install) -> None:
    graph = {"nodes": [{"op": {"op": "shares.operators:Ratio"}}]}
    site = install("shares", {"Ratio": "shares.operators:Ratio"})
    before = users_code(graph)
    (site / "shares-1.0.dist-info").rename(site / "shares-1.1.dist-info")
    (site / "shares-1.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: shares\nVersion: 1.1\n")
    sys.path.append(str(site / "another"))  # what is installed is looked up once for a search path
    assert before[-1] == "shares 1.0"
    assert users_code(graph) == [*before[:-1], "shares 1.1"]


class Counting(Learned):
    """Adds the number of rows that were learned from; it may do so wrongly."""

    wrong: str = "merge"

    def dtype_out(self, column: Any) -> pa.DataType:
        return pa.float64()

    def observe(self, column: Any) -> float:
        return float(len(column))

    def merge(self, a: float, b: float) -> float:
        return max(a, b) if self.wrong == "merge" else a + b

    def finalize(self, partial: float) -> dict[str, Any]:
        return {"rows": partial}

    def transform(self, column: Any, fitted: Any) -> Any:
        return column + (len(column) if self.wrong == "pieces" else fitted["rows"])


@pytest.mark.promise("A broken rule is an AssertionError that says which", "tasks/ops/OWN_OPERATOR.md#test-it")
def test_a_broken_rule_is_named(engine: str) -> None:
    table = pa.table({"x": [1, None, 3, 4, 5, 6]})
    check_operator(["x"], Counting(wrong="nothing"), table, engine)
    with pytest.raises(AssertionError, match=r"of x, cut before the rows \(1,\) .* was learned"):
        check_operator(["x"], Counting(), table, engine)
    with pytest.raises(AssertionError, match=r"cut before the rows \(1,\) the table gives other rows"):
        check_operator(["x"], Counting(wrong="pieces"), table, engine)


@pytest.mark.promise("`check_operator` tries on a small table of yours what every operator keeps to")
@pytest.mark.parametrize("name", ["Categorify", "FillMedian", "Dropna"])
def test_a_built_in_operator_passes(name: str, engine: str) -> None:
    check_operator(["x"], make_operator(name), pa.table({"x": [1, None, 3, 4, 5, 6]}), engine)
