"""`import rowmill`: the same names from a wheel, installed in place, by PYTHONPATH alone and in Dask's workers."""

from __future__ import annotations

import ast
import importlib
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pytest
import rowmill
from rowmill import Dataset, Workflow

import tasks.ops
from tests.commands import unchanged
from tests.conftest import python_path
from tests.reference import COMMAND, STUB, stub

ROOT = Path(__file__).resolve().parents[2]
PUBLIC = ROOT / "flows" / "public"
# The folders of the libraries: this interpreter's own, and others in PYTHONPATH.
LIBRARIES = [
    path for path in sys.path if any((Path(path) / name).exists() for name in ("pydantic", "threadpoolctl.py"))
]

# What `tasks.ops` has exported since the first release: operator files of users import these.
EXPORTED = [
    "Context", "Learned", "Operator", "Unit", "make_operator", "Bucketize", "HashBucket", "HashedCross",
    "Normalize", "FillMissing", "Clip", "LogOp", "Categorify", "DataStats", "Lambda", "Filter", "Dropna",
    "JoinExternal", "JoinGroupby", "PCA", "PairwiseRegression", "ListSlice", "ValueCount", "FillMedian",
    "QuantileBucketize", "NormalizeMinMax", "ReduceDtypeSize", "AddTags", "AddMetadata", "DropLowCardinality",
    "ColumnSimilarity", "TargetEncoding", "Cross", "SplitText", "DateParts", "Rename", "DifferenceLag", "Rolling",
    "Groupby",
]  # fmt: skip

PROBE = """
import rowmill, tasks
from rowmill.ops import Categorify
from rowmill import Dataset, Workflow
import pyarrow as pa
table = pa.table({"x": ["a", "b", "a"]})
print(Workflow(["x"] >> Categorify()).fit(Dataset(table)).transform(table)["x"].to_pylist())
print(rowmill.__file__, tasks.__file__, rowmill.__version__, sep="\\n")
"""


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    """What a command prints, in a folder, with nothing of this process' path; it must end well."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=known | variables, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def beside_a_clone(tmp_path: Path) -> Path:
    """The folder in which somebody cloned the repository under its own name: `rowmill` there is no package."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "rowmill").symlink_to(ROOT)
    return tmp_path / "here"


# names


def test_the_names_are_those_of_the_modules() -> None:
    for module, names in rowmill._MODULES.items():
        if module != "tasks.loading.torch":
            assert all(getattr(rowmill, name) is getattr(importlib.import_module(module), name) for name in names)
    assert rowmill.ops.Categorify is tasks.ops.Categorify
    assert set(rowmill.__all__) <= set(dir(rowmill))


def test_type_checkers_and_python_import_the_same_names() -> None:
    tree = ast.parse((PUBLIC / "rowmill" / "__init__.py").read_text())
    (checked,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imported = {n.module: tuple(a.name for a in n.names) for n in checked.body if isinstance(n, ast.ImportFrom)}
    assert imported.pop("rowmill") == ("ops",)
    assert imported == rowmill._MODULES
    names = {name for names in imported.values() for name in names}
    assert names | {"ops", "__version__"} == {*rowmill.__all__, "Rows"}


def test_type_checkers_know_every_operator() -> None:
    assert STUB.read_text() == stub() + "\n", f"run: {COMMAND}"
    imports = [node for node in ast.parse(stub()).body if isinstance(node, ast.ImportFrom)]
    assert {a.asname for node in imports for a in node.names} == set(tasks.ops.__all__)
    for node in imports:
        module = importlib.import_module(str(node.module))
        assert all(getattr(module, a.name) is getattr(tasks.ops, a.name) for a in node.names)


def test_tasks_ops_keeps_its_names() -> None:
    assert set(EXPORTED) <= set(tasks.ops.__all__)
    assert rowmill.ops.__all__ == tasks.ops.__all__


def test_a_wrong_name_is_an_error_with_the_right_one() -> None:
    with pytest.raises(AttributeError, match="module 'rowmill' has no attribute 'Datset'"):
        rowmill.Datset
    with pytest.raises(ImportError):
        exec("from rowmill import Datset")


def test_rows_without_pytorch_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "tasks.loading.torch", raising=False)
    monkeypatch.delitem(vars(rowmill), "Rows", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r"rowmill.Rows needs PyTorch: pip install 'rowmill\[torch\]'"):
        rowmill.Rows


def test_a_star_gives_the_names_that_can_be_imported() -> None:
    names: dict[str, object] = {}
    exec("from rowmill import *", names)
    assert set(rowmill.__all__) <= set(names)


def test_the_version_is_that_of_the_project() -> None:
    import tomllib

    assert rowmill.__version__ == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.mark.xdist_group("house")  # the process that has parsed all modules
def test_nothing_imports_it() -> None:
    from tests.infra.test_layout import MODULES, imports

    others = [path for path in MODULES if not path.is_relative_to(PUBLIC)]
    users = [path for path in others if any(name.split(".")[0] == "rowmill" for name in imports(path))]
    assert {str(path.relative_to(ROOT)) for path in users} <= {"flows/recipes/torch_example.py"}  # an example
    assert sorted(entry.name for entry in PUBLIC.iterdir() if entry.name != "__pycache__") == ["rowmill"]


@pytest.mark.system
def test_the_import_is_fast_and_loads_nothing_else(tmp_path: Path) -> None:
    program = """
import sys, time
begin = time.process_time()  # other tests run meanwhile
import rowmill
print(time.process_time() - begin, sorted({name.split(".")[0] for name in sys.modules} & {"tasks", "flows", "infra",
      "pyarrow", "pandas", "numpy", "dask", "prefect", "pydantic"}))
"""
    shown = [run(sys.executable, "-c", program, cwd=tmp_path, PYTHONPATH=python_path()).split(" ", 1) for _ in range(3)]
    assert {loaded.strip() for _, loaded in shown} == {"[]"}
    assert min(float(seconds) for seconds, _ in shown) < 0.05


# ways to have it


@pytest.mark.system
def test_two_folders_in_pythonpath_are_enough(beside_a_clone: Path) -> None:
    """-S: no installed packages and no .pth; the libraries are a folder like others."""
    path = os.pathsep.join([str(ROOT), str(PUBLIC), *LIBRARIES])
    if find_spec("numba_cuda"):
        pytest.skip("numba-cuda takes the place of numba.cuda in a .pth file, which -S leaves out")
    printed = run(sys.executable, "-S", "-c", PROBE, cwd=beside_a_clone, PYTHONPATH=path).splitlines()
    assert printed[0] == "[3, 4, 3]"
    assert printed[1:3] == [str(PUBLIC / "rowmill" / "__init__.py"), str(ROOT / "tasks" / "__init__.py")]
    assert "Usage: python -m rowmill" in run(
        sys.executable, "-S", "-m", "rowmill", "--help", cwd=beside_a_clone, PYTHONPATH=path
    )


def environment_in(folder: Path, libraries: Sequence[str] = LIBRARIES) -> Path:
    """The Python of a new virtual environment with the libraries of this one, but not what is installed in place."""
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    (site_of(python) / "libraries.pth").write_text("\n".join([*libraries, ""]))  # a .pth in there is not read
    return python


def site_of(python: Path) -> Path:
    """The folder of what is installed in a virtual environment."""
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    return site


def install(python: Path, *what: str | Path) -> None:
    pytest.importorskip("hatchling", reason="needs hatchling: pip install '.[test]'")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--ignore-installed", "--no-compile"]
    run(python, "-m", "pip", "--disable-pip-version-check", "install", *options, *what, cwd=python.parent)


@pytest.fixture(scope="module")
def with_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a virtual environment in which the wheel is installed."""
    folder = tmp_path_factory.mktemp("wheel")
    python = environment_in(folder / "venv")
    install(python, build_wheel(folder))
    return python


def build_wheel(folder: Path) -> Path:
    builder = pytest.importorskip("hatchling.builders.wheel", reason="needs hatchling: pip install '.[test]'")
    (wheel,) = builder.WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    return Path(wheel)


SHIPPED = """
import warnings
warnings.simplefilter("ignore")
from importlib.util import find_spec
from pathlib import Path
from flows.job.job import recipes
from prefect.flows import load_flow_from_entrypoint
import flows, infra, tasks
print(*sorted(recipes()))
print(load_flow_from_entrypoint("flows.preprocess.preprocess").name)
print(load_flow_from_entrypoint(str(Path(flows.__file__).parent / "preprocess.py") + ":preprocess").name)
print((Path(infra.__file__).parent / "prefect.yaml").exists())
print((Path(tasks.__file__).parent / "report" / "page.html.j2").exists())
"""


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.xdist_group("wheel")
@pytest.mark.parametrize("way", ["wheel", "in place"])
def test_it_installs(way: str, beside_a_clone: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if way == "wheel":
        python = request.getfixturevalue("with_wheel")
    else:
        python = environment_in(tmp_path / "venv")
        install(python, "-e", ROOT)

    answer, public, own, version, *shipped = run(python, "-c", PROBE + SHIPPED, cwd=beside_a_clone).splitlines()
    site = Path(own).parent.parent
    assert (answer, version) == ("[3, 4, 3]", "0.1.0")
    if way == "wheel":
        assert site.is_relative_to(python.parents[1])
        assert Path(public) == site / "rowmill" / "__init__.py"
        assert not (site / "flows" / "public").exists()
        assert not (site / "tests").exists()
    else:
        assert (site, Path(public)) == (ROOT, PUBLIC / "rowmill" / "__init__.py")

    assert "Usage: python -m rowmill" in run(python, "-m", "rowmill", "--help", cwd=beside_a_clone)
    assert "Usage: rowmill" in run(python.parent / "rowmill", "--help", cwd=beside_a_clone)
    assert shipped == ["criteo ecommerce pca sequences sessions toy", "preprocess", "preprocess", "True", "True"]


@pytest.mark.slow
def test_the_wheel_has_every_module_and_the_files_they_read(tmp_path: Path) -> None:
    names = {n for n in zipfile.ZipFile(build_wheel(tmp_path)).namelist() if ".dist-info/" not in n}
    kinds = {".py", ".yaml", ".html", ".j2", ".pyi", ".typed"}
    files = [path for room in ("flows", "tasks", "infra") for path in (ROOT / room).rglob("*") if path.suffix in kinds]
    assert names == {str(path.relative_to(PUBLIC if path.is_relative_to(PUBLIC) else ROOT)) for path in files}


TYPED = """
from rowmill import Dataset, Manifest, Workflow, loader, ops
from rowmill.ops import Categorify

features = ["x"] >> Categorify()
features += ["y"] >> ops.Clip(0, 1)
reveal_type(Dataset("data").num_rows)
reveal_type(Workflow(features).fit_transform(Dataset("data")).to_parquet("out"))
reveal_type(Categorify)
reveal_type(loader("out"))
Workflow(features).transfrom
ops.Clp
"""


@pytest.fixture(scope="module")
def mypy_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What mypy knows of the standard library, and of modules by their content."""
    return tmp_path_factory.mktemp("mypy")


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.xdist_group("wheel")
@pytest.mark.parametrize("way", ["mypy_path", "wheel"])
def test_type_checkers_know_it(way: str, tmp_path: Path, mypy_cache: Path, request: pytest.FixtureRequest) -> None:
    pytest.importorskip("mypy", reason="needs mypy: pip install '.[dev]'")
    (tmp_path / "program.py").write_text(TYPED)
    mypy = [sys.executable, "-m", "mypy", "--ignore-missing-imports", "--follow-imports=silent"]
    mypy += ["--cache-dir", str(mypy_cache)]
    path = f"{ROOT}{os.pathsep}{PUBLIC}"
    if way == "wheel":  # what is installed counts only with its py.typed; mypy looks at no libraries
        python = environment_in(tmp_path / "venv", libraries=[])
        shutil.copytree(site_of(request.getfixturevalue("with_wheel")), site_of(python), dirs_exist_ok=True,
                        ignore=shutil.ignore_patterns("libraries.pth", "__pycache__"))  # fmt: skip
        mypy += ["--python-executable", str(python)]
        path = ""
    else:
        mypy += ["--no-site-packages"]
    known = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [*mypy, "program.py"], cwd=tmp_path, env=known | {"MYPYPATH": path}, capture_output=True, text=True
    )
    revealed = [line.partition("Revealed type is ")[2] for line in done.stdout.splitlines() if "Revealed" in line]
    assert [name in line for name, line in zip(["int", "Manifest", "Categorify", "Loader"], revealed, strict=True)] == (
        [True] * 4
    ), done.stdout
    assert '"Workflow" has no attribute "transfrom"' in done.stdout
    assert 'Module has no attribute "Clp"' in done.stdout
    assert "Found 2 errors" in done.stdout


# workers, and operators of users

WORKERS = """
import os, sys
sys.path[:0] = {first!r}
import rowmill
from rowmill import Column
from distributed import Client
from infra.clusters.kinds import make_cluster
from infra.clusters.model import Cluster
from infra.workers import forkserver

def where(column):
    from rowmill.ops import Categorify
    return rowmill.__file__, type(column).__name__, Categorify.__name__, os.getppid()

if __name__ == "__main__":
    forkserver.start()
    for variables in {variables!r}:
        os.environ.update(variables)
        with make_cluster(Cluster(kind="cpu", workers=1)) as cluster, Client(cluster, set_as_default=False) as client:
            *shown, parent = client.submit(where, Column("x", None)).result()
            print(*shown, "spawned" if parent == os.getpid() else "forked")
"""


@pytest.mark.system
@pytest.mark.parametrize("how", ["PYTHONPATH", "sys.path"])
def test_a_worker_has_it(how: str, tmp_path: Path) -> None:
    """In a fork of the fork server, and in an interpreter of its own, which a worker in another time zone has."""
    first, path = ([], [str(PUBLIC)]) if how == "PYTHONPATH" else ([str(PUBLIC)], [])
    starts: dict[str, dict[str, str]] = {"forked": {}}
    if how == "PYTHONPATH":
        starts["spawned"] = {"TZ": "Asia/Tokyo"}
    (tmp_path / "program.py").write_text(WORKERS.format(first=first, variables=[*starts.values()]))
    path = os.pathsep.join([str(ROOT), *path, *LIBRARIES])
    printed = run(sys.executable, "-W", "ignore", "-S", tmp_path / "program.py", cwd=tmp_path, PYTHONPATH=path)
    file = PUBLIC / "rowmill" / "__init__.py"
    assert printed.splitlines() == [f"{file} Column Categorify {start}" for start in starts]


def test_workers_take_this_one_not_that_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from infra import environment

    (tmp_path / "rowmill").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(ROOT), str(PUBLIC)])
    assert environment.packages_on([str(tmp_path)], ["rowmill"]) == {"rowmill": []}  # a folder, as a clone is
    environment._put_own_packages_first()
    assert sys.path == [str(tmp_path), str(ROOT), str(PUBLIC)]
    (tmp_path / "rowmill" / "__init__.py").touch()
    environment._put_own_packages_first()
    assert sys.path == [str(PUBLIC), str(tmp_path), str(ROOT), str(PUBLIC)]


OPERATOR = """
from typing import Any
{imports}

class LessMean(Learned):
    def dtype_out(self, column: Column) -> Any:
        return column.dtype
    def observe(self, column: Any) -> list[float]:
        return [float(column.sum()), len(column)]
    def merge(self, a: list[float], b: list[float]) -> list[float]:
        return [a[0] + b[0], a[1] + b[1]]
    def finalize(self, partial: list[float]) -> dict[str, Any]:
        return {{"mean": partial[0] / partial[1]}}
    def transform(self, column: Any, fitted: dict[str, Any]) -> Any:
        return column - fitted["mean"]
"""
LOAD = """
import sys
import pyarrow as pa
from rowmill import Workflow
for name in sys.argv[1:]:
    print(Workflow.load(f"fitted-{name}").transform(pa.table({"x": [5.0, 2.0]}))["x"].to_pylist())
"""
IMPORTS = {
    "before": "from tasks.ops import Learned\nColumn = Any",
    "today": "from rowmill import Column\nfrom rowmill.ops import Learned",
}


@pytest.mark.system
def test_an_operator_file_works_from_a_saved_workflow(tmp_path: Path) -> None:
    """One that was written before there was `import rowmill`, and one of today."""
    for name, imports in IMPORTS.items():
        (tmp_path / f"{name}.py").write_text(OPERATOR.format(imports=imports))
    path = f"{tmp_path}{os.pathsep}{python_path()}"
    with unchanged():
        os.chdir(tmp_path)
        sys.path.insert(0, str(tmp_path))
        for name in IMPORTS:
            operator = importlib.import_module(name).LessMean()
            fitted = Workflow(["x"] >> operator).fit(Dataset(pa.table({"x": [1.0, 3.0]})))
            fitted.save(f"fitted-{name}")
    printed = run(sys.executable, "-c", LOAD, *IMPORTS, cwd=tmp_path, PYTHONPATH=path)
    assert printed.splitlines() == ["[3.0, 0.0]"] * 2


@pytest.mark.promise("would hide a package of rowmill: `import rowmill` then names the file")
@pytest.mark.parametrize(("name", "hides"), [("tasks.py", "tasks.py"), ("infra/__init__.py", "infra")])
def test_a_module_beside_a_script_that_hides_a_package_is_named(
    name: str, hides: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tutorials of Invoke and Celery call a user's module tasks.py; Python looks beside the script first."""
    own = tmp_path / name
    own.parent.mkdir(exist_ok=True)
    own.touch()
    package = hides.removesuffix(".py")
    monkeypatch.delitem(sys.modules, package)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ImportError, match=f"{hides} hides a package of rowmill") as caught:
        rowmill._check_own_packages()
    assert (caught.value.name, caught.value.path) == (package, str(tmp_path / hides))
    assert f"do: rename {hides}, or call python -P" in str(caught.value)
    own.unlink()
    rowmill._check_own_packages()  # a folder without __init__.py hides nothing
