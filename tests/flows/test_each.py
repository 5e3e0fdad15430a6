"""Many small calls of one's own function: the 1,225 regressions of a text, data sent once, errors by item."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from distributed import Client, get_worker
from rowmill import Dataset, JobError, RowmillError, Workflow, each, ops

from tasks.engines import engine_of
from tasks.engines.algorithms.reductions import on_host
from tasks.engines.convert.libraries import to_frame
from tasks.errors import DataError
from tests.clusters import start_threads


@pytest.fixture
def client() -> Iterator[Client]:
    """A client of two workers that are threads of this process: what they are sent is pickled as for any worker."""
    with start_threads([{}, {}]) as cluster, Client(cluster, set_as_default=False) as client:
        yield client


def wide_table() -> pa.Table:
    draw = np.random.default_rng(12)
    columns = {f"x{i}": draw.standard_normal(400) for i in range(50)}
    return pa.table(columns | {"y": columns["x3"] * 2 - columns["x7"] + draw.standard_normal(400)})


def fit_ols(frame: Any, pair: tuple[str, str]) -> list[float]:
    """The coefficients and the intercept of a regression of y on two columns, on either engine."""
    xp = engine_of(frame["y"]).xp
    columns = [xp.asarray(frame[name].to_numpy() if xp is np else frame[name].values) for name in (*pair, "y")]
    matrix = xp.stack([*columns[:2], xp.ones(len(frame))], axis=1)
    return on_host(xp.linalg.lstsq(matrix, columns[2], rcond=None)[0]).tolist()


def pairwise_regression(table: pa.Table, engine: str) -> dict[tuple[str, str], list[float]]:
    names = [name for name in table.column_names if name != "y"]
    workflow = Workflow(names >> ops.PairwiseRegression(target="y")).fit(Dataset(table, engine=engine))
    assert workflow.state is not None
    (fitted,) = workflow.state.values.values()
    fits = ("first_coefficient", "second_coefficient", "intercept")
    return {(row["first"], row["second"]): [row[name] for name in fits] for row in fitted["pairs"].to_pylist()}


@pytest.mark.promise("1,225 regressions of y on two of 50 columns", "tests/bench/README.md#figures-of-the-texts")
def test_1_225_regressions_of_one_s_own_equal_those_of_the_operator(engine: str) -> None:
    table = wide_table()
    pairs = list(combinations([f"x{i}" for i in range(50)], 2))
    fits = each(fit_ols, pairs, broadcast=to_frame(table, engine))
    expected = pairwise_regression(table, engine)
    assert len(fits) == 1_225
    assert np.abs(np.array(fits) - [expected[pair] for pair in pairs]).max() < 1e-12


class Shared:
    """What notes in a folder each time that a process gets it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.values = folder, np.arange(2_000_000)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        (self.folder / f"{threading.get_ident()}-{id(self)}").touch()


@pytest.mark.system
@pytest.mark.promise("`broadcast` goes to each worker once", "flows/SERVING.md#work-of-your-own-at-scale")
def test_workers_get_the_data_once_and_results_come_in_order(client: Client, tmp_path: Path) -> None:
    results = each(lambda shared, i: int(shared.values[i]) * 2, range(100), Shared(tmp_path), client=client)
    assert results == [2 * i for i in range(100)]
    assert len(list(tmp_path.iterdir())) == 2
    with client.as_current():
        addresses = each(lambda _: get_worker().address, range(40))
    assert set(addresses) == set(client.scheduler_info()["workers"])


@pytest.mark.system
def test_regressions_on_two_workers_are_those_of_this_process(client: Client) -> None:
    frame, pairs = wide_table().to_pandas(), list(combinations([f"x{i}" for i in range(10)], 2))
    there, here = (np.array(each(fit_ols, pairs, frame, client=where)) for where in (client, None))
    assert np.abs(there - here).max() < 1e-12


@pytest.mark.system
@pytest.mark.promise("an error names its item")
def test_errors_name_the_item_on_workers_too(client: Client) -> None:
    with pytest.raises(DataError, match=r"(?s)divided failed.*each, item 3: 0.*ZeroDivisionError"):
        each(divided, [3, 2, 1, 0], client=client)
    with pytest.raises(JobError, match="cannot be sent to the workers of the cluster"):
        each(lambda lock, n: n, [1], threading.Lock(), client=client)


def divided(n: int) -> float:
    return 6 / n


def test_what_goes_wrong_is_named() -> None:
    line = r"line \d+ of .*test_each.py, in divided"
    with pytest.raises(DataError, match=rf"(?s)divided failed.*each, item 3: 0.*ZeroDivisionError: .* by zero; {line}"):
        each(divided, [3, 2, 1, 0])
    with pytest.raises(JobError, match=r"(?s)is not a running Dask client.*give distributed.Client"):
        each(divided, [1], client="tcp://host:8786")
    with pytest.raises(DataError, match=r"(?s)the function failed.*'int' object is not callable"):
        each(3, [1])  # type: ignore[arg-type]

    def refusing(_: Any) -> None:
        raise JobError("not this one", do="another")

    with pytest.raises(RowmillError, match="not this one"):
        each(refusing, [1])
    assert each(divided, []) == []
    assert each(divided, iter([1, 2])) == [6.0, 3.0]


@pytest.mark.system
def test_what_is_scattered_already_is_taken(client: Client) -> None:
    scattered = client.scatter([[3, 4, 5]], broadcast=True)[0]
    assert each(lambda prices, n: sum(prices[-n:]), [1, 2], scattered, client=client) == [5, 9]
