"""Two flows at the same time on one scheduler."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.faults.jobs import FEATURES, digests, flow_state, go, make_data, make_job, run_here

pytestmark = pytest.mark.xdist_group("faults")


def test_two_flows_at_once_on_one_scheduler_keep_apart(
    tmp_path: Path, prefect_server: Any, cluster: Any, client: Any, engine: str
) -> None:
    """The same source, different targets; what one releases is its own alone."""
    data = make_data(tmp_path / "data", files=2)
    client.publish_dataset(client.submit(len, "abc"), name="rowmill-of-somebody-else")
    other = {"output": {"seed": 99}, "features": FEATURES[:1]}
    jobs = [make_job(data, tmp_path / "a"), make_job(data, tmp_path / "b", **other)]
    with ThreadPoolExecutor(2) as threads:
        states = list(threads.map(lambda one: run_here(one, cluster), jobs))
    assert [flow_state(state) for state in states] == ["Completed"] * 2
    for name, sections in (("a", {}), ("b", other)):
        alone = tmp_path / f"{name} alone"
        go(make_job(data, alone, **sections), engine)
        assert digests(tmp_path / name) == digests(alone)
    assert list(client.list_datasets()) == ["rowmill-of-somebody-else"]
    client.unpublish_dataset("rowmill-of-somebody-else")
