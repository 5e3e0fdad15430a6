"""Two hosts on this machine, which have neither memory nor a name in common: the files are those of one host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.bench import two_hosts
from tests.bench.gpu import make_source

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("clusters"), pytest.mark.timeout(900)]
ONE = [two_hosts.Host("127.0.0.1")] * 2


@pytest.mark.promise("All between hosts goes over TLS", "infra/README.md#on-a-cluster")
@pytest.mark.promise("the bytes of each way", "infra/README.md#on-several-gpus")
def test_two_hosts_write_the_files_of_one_and_send_all_over_tls(tmp_path: Path) -> None:
    if why := two_hosts.refusal():
        pytest.skip(f"no two hosts here: {why}")
    _, source = make_source("toy", tmp_path, 300_000, None)
    changes = [*source, "output.files_per_worker=null", "output.files=4"]
    runs = [{"recipe": "toy", "changes": [*changes, f"run.exchange={exchange}"], "target": str(tmp_path / "out")}
            for exchange in ("memory", "disk")]  # fmt: skip
    one = two_hosts.measure(ONE, tmp_path / "one", runs)
    with two_hosts.two_hosts(tmp_path) as hosts:
        two = two_hosts.measure(hosts, tmp_path / "two", runs)
    assert {name: len({worker[name] for worker in one["workers"]}) for name in one["workers"][0]} == shared(1)
    assert {name: len({worker[name] for worker in two["workers"]}) for name in two["workers"][0]} == shared(2)
    assert len({run["digest"] for run in [*one["runs"], *two["runs"]]}) == 1
    assert [set(run["ways"]) for run in one["runs"]] == [{"host memory", "tls"}, {"tls"}]
    assert [set(run["ways"]) for run in two["runs"]] == [{"tls"}, {"tls"}]
    assert any(nbytes.endswith("MB") for nbytes in two["runs"][0]["ways"]["tls"])


def shared(count: int) -> dict[str, Any]:
    """How many different ones two workers have of each."""
    return dict.fromkeys(["host", "shared_memory", "net", "pid", "mnt", "uts", "ipc"], count)
