"""Two hosts on this machine, which have neither memory nor a name in common: the files are those of one host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.clusters.model import Cluster
from tests.bench import two_hosts
from tests.bench.gpu import make_source
from tests.clusters import make_cluster
from tests.running import section_of

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("clusters"), pytest.mark.timeout(900)]
ROWS = 100_000


@pytest.mark.promise("All between hosts goes over TLS", "infra/README.md#on-a-cluster")
@pytest.mark.promise("the bytes of each way", "infra/README.md#on-several-gpus")
def test_two_hosts_write_the_files_of_one_and_send_all_over_tls(
    tmp_path: Path, prefect_server: Any, new_prefect_home: Callable[[Path], Path]
) -> None:
    if why := two_hosts.refusal():
        pytest.skip(f"no two hosts here: {why}")
    _, source = make_source("toy", tmp_path, ROWS, None)
    changes = [*source, "output.files_per_worker=null", "output.files=4"]
    runs = [{"recipe": "toy", "changes": [*changes, f"run.exchange={exchange}"], "target": str(tmp_path / "out")}
            for exchange in ("memory", "disk")]  # fmt: skip
    one = run_on_one_host(runs, prefect_server.api_url)
    new_prefect_home(tmp_path / "two" / "prefect")
    with two_hosts.two_hosts(tmp_path) as hosts:
        two = two_hosts.measure(hosts, tmp_path / "two", runs, options=["--no-nanny"])
    assert {name: len({worker[name] for worker in one["workers"]}) for name in one["workers"][0]} == shared(1)
    assert {name: len({worker[name] for worker in two["workers"]}) for name in two["workers"][0]} == shared(2)
    assert len({run["digest"] for run in [*one["runs"], *two["runs"]]}) == 1
    assert [set(run["ways"]) for run in one["runs"]] == [{"host memory", "tls"}, {"tls"}]
    assert [set(run["ways"]) for run in two["runs"]] == [{"tls"}, {"tls"}]
    assert any(nbytes.endswith("MB") for nbytes in two["runs"][0]["ways"]["tls"])


def run_on_one_host(runs: list[dict[str, Any]], api: str) -> dict[str, Any]:
    """The same runs on two workers of this host, with the session's server."""
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    with (
        make_cluster(Cluster(kind="cpu", workers=2, threads_per_worker=1)) as cluster,
        temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}),
    ):
        return two_hosts.session({"where": section_of(cluster), "api": api, "workers": 2, "runs": runs})


def shared(count: int) -> dict[str, Any]:
    """How many different ones two workers have of each."""
    return dict.fromkeys(["host", "shared_memory", "net", "pid", "mnt", "uts", "ipc"], count)
