"""YAML that a few lines make endless: refused quickly, with the place, wherever YAML is read."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.job.job import load_job, make_job, set_key
from infra.orchestration.deployment_file import read_file
from tasks.errors import JobError

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30)
)
MERGES = "a0: &a0 {x: 1, y: 2}\n" + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 40))
TEXTS = {
    "aliases of aliases": (LAUGHS, "with what its aliases repeat"),
    "merges of merges": (MERGES, "with what its aliases repeat"),
    "lists in lists": ("source: " + "[" * 100_000, "more than 64 levels deep"),
    "maps in maps": ("source: " + "{a: " * 100_000, "more than 64 levels deep"),
    "a block as deep": ("".join(" " * n + "a:\n" for n in range(1000)), "more than 64 levels deep"),
    "a value that holds itself": ("source: &a [*a]\n", "a value holds itself"),
    "a number of a million digits": ("source: " + "1" * 900_000, "digits"),
    "a time that is none": ("source: !!timestamp x", "a value is not what its tag says"),
    "a truth that is none": ("source: !!bool maybe", "a value is not what its tag says"),
    "a text of ten million": ("source: " + "x" * 10_000_000, "more than 1,048,576"),
}


def of_a_job_file(text: str, folder: Path) -> None:
    path = folder / "job.yaml"
    path.write_text(text)
    load_job(path)


def of_features(text: str, folder: Path) -> None:
    make_job({"source": {"path": "in"}, "features": text, "output": {"path": "out"}})


def of_a_change(text: str, folder: Path) -> None:
    data: dict[str, Any] = {}
    set_key(data, "features=" + text)
    make_job({"source": {"path": "in"}, "output": {"path": "out"}} | data)


def of_deployments(text: str, folder: Path) -> None:
    path = folder / "prefect.yaml"
    path.write_text(text)
    read_file(path)


@pytest.mark.promise("YAML of more than 1 MiB, 100,000 values (with what aliases repeat) or 64 levels is refused")
@pytest.mark.parametrize("read", [of_a_job_file, of_features, of_a_change, of_deployments])
@pytest.mark.parametrize("case", TEXTS)
def test_yaml_that_does_not_end_is_refused(case: str, read: Callable[[str, Path], None], tmp_path: Path) -> None:
    text, said = TEXTS[case]
    began = time.process_time()
    with pytest.raises(JobError) as caught:
        read(text, tmp_path)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 3000
    assert time.process_time() - began < 5


def test_aliases_that_repeat_little_are_read(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "source: {path: in}\noutput: {path: out}\nfeatures:\n"
        "  - {columns: [x], ops: &ops [{op: FillMissing}, {op: Normalize}]}\n  - {columns: [y], ops: *ops}\n"
    )
    assert load_job(path).features[1].ops == [{"op": "FillMissing"}, {"op": "Normalize"}]


def test_values_of_a_call_that_lie_too_deep_are_refused() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(JobError) as caught:
        make_job({"source": {"path": "in", "storage_options": {"a": deep}}, "features": [], "output": {"path": "out"}})
    assert (caught.value.what, caught.value.where) == ("values are nested more than 64 levels deep", "source")
