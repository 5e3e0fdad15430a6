"""rowmill from Python: data sets, workflows of operators, outputs and batches for training.

    from rowmill import Dataset, Workflow, ops

    features = ["x", "y"] >> ops.FillMissing(0) >> ops.Normalize()
    workflow = Workflow(features + ["label"])
    workflow.fit_transform(Dataset("data/*.parquet")).to_parquet("out", shuffle="full", seed=0, files=8)

The names in `__all__` are the public interface; where they live in `tasks` may change. A name is imported when it is
first used (PEP 562), so that `import rowmill` takes milliseconds. `Rows` needs PyTorch: pip install 'rowmill[torch]'.

>>> import rowmill
>>> import pyarrow as pa
>>> from rowmill import Dataset, Workflow, ops
>>> workflow = Workflow(["x"] >> ops.FillMissing(0)).fit(Dataset(pa.table({"x": [1, None, 3]})))
>>> workflow.transform(pa.table({"x": [None, 5]}))["x"].to_pylist()
[0, 5]
>>> Dataset("nowhere/*.parquet").schema
Traceback (most recent call last):
    ...
tasks.errors.NoInputError: there is no input
  where: nowhere/*.parquet...
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flows.draft.draft import draft
    from rowmill import ops
    from rowmill.linalg import SVD, svd
    from rowmill.parallel import each
    from tasks.core.schema import Column, Schema, Tags
    from tasks.dataset import Dataset
    from tasks.errors import DataError, GiveUpError, HostError, JobError, RowmillError, TransientError
    from tasks.loading import Loader, Shard, arrays, jagged, loader
    from tasks.loading.embedding_growth import grow
    from tasks.loading.torch import Rows
    from tasks.manifest import Manifest
    from tasks.run.plugin import CurrentRun, NothingToDoError, RunPlugin
    from tasks.workflow import Transformed, Workflow

    __version__: str

__all__ = [
    "SVD",
    "Column",
    "CurrentRun",
    "DataError",
    "Dataset",
    "GiveUpError",
    "HostError",
    "JobError",
    "Loader",
    "Manifest",
    "NothingToDoError",
    "RowmillError",
    "RunPlugin",
    "Schema",
    "Shard",
    "Tags",
    "Transformed",
    "TransientError",
    "Workflow",
    "__version__",
    "arrays",
    "draft",
    "each",
    "grow",
    "jagged",
    "loader",
    "ops",
    "svd",
]
_FOLDERS = {"tasks": "storage", "flows": "recipes", "infra": "orchestration"}  # of each package, one that it has


def _check_own_packages() -> None:
    """Raise an ImportError where a module of the user, such as tasks.py beside a script, hides a package of rowmill."""
    for name, folder in _FOLDERS.items():
        spec = find_spec(name)
        places = list(spec.submodule_search_locations or ()) if spec else []
        if spec is None or any(Path(place, folder).is_dir() for place in places):
            continue
        where = Path(spec.origin or places[0])
        hides = where.parent if where.name == "__init__.py" else where
        raise ImportError(
            f"{hides} hides a package of rowmill\n"
            f"  why: rowmill needs its own package {name!r}, and Python finds this one first\n"
            f"  do: rename {hides.name}, or call python -P, which does not look in the folder of the script",
            name=name,
            path=str(hides),
        )


_check_own_packages()
if find_spec("torch"):  # `from rowmill import *` works without PyTorch, too
    __all__ += ["Rows"]

# The modules of the imports above, which only type checkers run.
_MODULES = {
    "flows.draft.draft": ("draft",),
    "rowmill.linalg": ("SVD", "svd"),
    "rowmill.parallel": ("each",),
    "tasks.core.schema": ("Column", "Schema", "Tags"),
    "tasks.dataset": ("Dataset",),
    "tasks.errors": ("DataError", "GiveUpError", "HostError", "JobError", "RowmillError", "TransientError"),
    "tasks.loading": ("Loader", "Shard", "arrays", "jagged", "loader"),
    "tasks.loading.embedding_growth": ("grow",),
    "tasks.loading.torch": ("Rows",),
    "tasks.manifest": ("Manifest",),
    "tasks.run.plugin": ("CurrentRun", "NothingToDoError", "RunPlugin"),
    "tasks.workflow": ("Transformed", "Workflow"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used. ModuleNotFoundError for `Rows` without PyTorch, AttributeError for
    others; a JobError for names of NVTabular, since `from rowmill import` would hide an AttributeError's text."""
    value: Any
    if name == "ops":
        return importlib.import_module("rowmill.ops")
    if name == "__version__":
        from tasks.core.versions import rowmill_version

        value = rowmill_version()
    elif name in _MODULE_OF:
        try:
            value = getattr(importlib.import_module(_MODULE_OF[name]), name)
        except ModuleNotFoundError as error:
            from tasks.core.wings import absent_wing

            if absent := absent_wing(error, f"rowmill.{name}"):
                raise absent from None
            if error.name != "torch":
                raise
            do = "pip install 'rowmill[torch]'"
            raise ModuleNotFoundError(f"rowmill.{name} needs PyTorch: {do}", name="torch") from error
    else:
        from tasks.core.nvtabular import of_attribute
        from tasks.errors import JobError

        if advice := of_attribute("nvt", name):
            raise JobError(f"there is no rowmill.{name}", do=advice)
        raise AttributeError(f"module 'rowmill' has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
