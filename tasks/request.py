"""What a run is asked to do, as plain values, and the fingerprints under which its results are found again."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from tasks import shuffle
from tasks.allowed import allowed_roots
from tasks.commit import Staging, read_json
from tasks.errors import DataError
from tasks.graph import Node, graph_from_json, graph_to_json, topological
from tasks.ingest import read_options
from tasks.manifest import millrace_version, stable_json
from tasks.plan import Plan
from tasks.schema import ROW, Schema
from tasks.settings import Output, Run, Source


@dataclass(frozen=True)
class Request:
    """What a run is asked to do: the same request finds the same staging folder.

    `code` names the code that does it, `owner` the run that holds the lock, `flow` what it belongs to; none is part
    of what is asked. `fitted` is the fitted workflow that is applied: path, digest of the state, schema; {} when one
    is learned. `roots` are those that the flow's host allows.
    """

    source: dict[str, Any]
    graph: list[dict[str, Any]]
    output: dict[str, Any]
    run: dict[str, Any] = field(default_factory=dict)
    engine: str = "pandas"
    labels: tuple[str, ...] = ()
    code: str = ""
    owner: str = ""
    flow: str = "preprocess"
    fitted: dict[str, Any] = field(default_factory=dict)
    roots: tuple[str, ...] | None = None

    @cached_property
    def settings(self) -> tuple[Source, Output, Run]:
        return Source(**self.source), Output(**self.output), Run(**self.run)

    @cached_property
    def final(self) -> Node:
        return graph_from_json(self.graph)

    @cached_property
    def fitted_schema(self) -> Schema:
        """The columns that the workflow was fitted on."""
        return Schema(c for c in Schema.from_json(self.fitted["schema"]).columns if c.name != ROW)

    @cached_property
    def staging(self) -> Staging:
        _, output, run = self.settings
        return Staging(output.path, run.scratch)

    @property
    def splits(self) -> tuple[str, ...]:
        """The sub-folders of the output: none, or train and valid."""
        return ("train", "valid") if self.settings[0].valid else ("",)

    @property
    def side_files(self) -> list[Any]:
        """Path, size and time of every file that an operator reads besides the source."""
        paths = [Path(path) for node in topological(self.final) if node.op for path in node.op.files]
        return [[str(p), *((p.stat().st_size, p.stat().st_mtime_ns) if p.exists() else ())] for p in paths]

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k in self.__dataclass_fields__}

    @property
    def plan_fingerprint(self) -> str:
        """Names what a plan depends on besides the files themselves."""
        source, _, run = self.settings
        return fingerprint(
            self.code,
            self.engine,
            source.model_dump(exclude={"filter", "sample"}),
            run.min_partition_size,
            *self._fitted,
        )

    @property
    def _fitted(self) -> list[Any]:
        """What is applied, by its content: the folder may be moved."""
        return [self.graph, self.fitted["state"], self.fitted["schema"]] if self.fitted else []

    def state_fingerprint(self, plan: str) -> str:
        """Names what is learned from a plan: nothing of the output's settings, nor how the rows are cut."""
        source, _, _ = self.settings
        rows = source.model_dump(exclude={"partition_size", "part_mem_fraction", "sample"})
        return fingerprint(self.code, self.engine, rows, self.graph, self.side_files, plan, *self._fitted)

    def parts_fingerprint(self, *more: Any) -> str:
        """Names the bytes of the output; `more` are plan, state, number of files and split."""
        files = self.settings[1].model_dump(exclude={"path", "on_existing", "keep_versions"})
        return fingerprint(self.state_fingerprint(""), files, shuffle.PERMUTATION_VERSION, *more)


class PlanOf:
    """The plans of a run, as saved by ingest."""

    def __init__(self, request: Request) -> None:
        self.path, self.source = request.staging.folder / "plan.json", request.settings[0]
        self.data = read_json(self.path) or {}

    def complete(self, splits: Sequence[str]) -> bool:
        """True if the scratch files of a keyed source are all there."""
        return all(Path(f.path).exists() for split in splits for f in self.plan(split).files)

    def plan(self, split: str) -> Plan:
        try:
            plan = Plan.from_json(self.data["plans"][split])
        except (KeyError, TypeError, ValueError, IndexError):
            raise DataError(
                "the plan of this run is gone or damaged",
                where=str(self.path),
                why="something else changed it between two stages",
                do="run the same job again",
            ) from None
        return plan.with_storage_options(read_options(self.source)["storage_options"])

    @property
    def workers(self) -> int:
        """The workers at ingest: what is counted by workers must not change when one is lost."""
        return int(self.data["workers"])


def make_request(
    source: Source, final: Node, output: Output, run: Run, engine: str, labels: Sequence[str] = ()
) -> Request:
    """The request of a job's sections for one engine."""
    return new_request(source, graph_to_json(final), output, run, engine, labels)


def new_request(
    source: Source,
    graph: list[dict[str, Any]],
    output: Output,
    run: Run,
    engine: str,
    labels: Sequence[str],
    **more: Any,
) -> Request:
    """The request of a graph as it is saved; `more` are flow and fitted."""
    return Request(
        source.model_dump(by_alias=True, mode="json"),
        graph,
        output.model_dump(mode="json"),
        run.model_dump(mode="json"),
        engine,
        tuple(labels),
        fingerprint(millrace_version(), own_code(), users_code(graph)),
        roots=allowed_roots(),
        **more,
    )


def fingerprint(*values: Any) -> str:
    """sha256 of plain values."""
    return hashlib.sha256(stable_json(values).encode()).hexdigest()


@lru_cache(maxsize=1)
def own_code() -> str:
    """sha256 of this package's modules: an installation that is edited has no version of its own."""
    folder = Path(__file__).parent
    text = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        text.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    return text.hexdigest()


def users_code(graph: Any) -> list[str]:
    """sha256 of the modules whose functions or classes the graph names by import path (`module:name`)."""
    names = sorted({text.partition(":")[0] for text in _named(graph)})
    found = []
    for name in names:
        with suppress(ImportError):  # who calls it says what is missing
            spec = importlib.util.find_spec(name)
            if spec and spec.origin and Path(spec.origin).is_file():
                found.append(hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest())
    return found


def _named(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("op", "function") and isinstance(inner, str) and ":" in inner:
                yield inner
            else:
                yield from _named(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _named(inner)
