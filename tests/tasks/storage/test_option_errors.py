"""Options of a storage that are unknown, or misspelt: what is unknown, who gave it, and what is near it."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rowmill.cli import app
from typer.testing import CliRunner

from flows.job.job import make_application, make_job
from tasks import ops
from tasks.core.settings import Output, Source
from tasks.dataset import Dataset
from tasks.errors import JobError, RowmillError
from tasks.sources.formats import read_options
from tasks.storage.credentials import StorageOptions, storage
from tasks.storage.files import expand
from tasks.storage.published_copy import open_published
from tasks.storage.staging import Staging
from tasks.storage.stores import list_files, open_store
from tasks.workflow import Workflow

CORRECT = "correct it, or leave it out"


def refuse(call: Callable[[], Any]) -> RowmillError:
    with pytest.raises(RowmillError) as error:
        call()
    assert isinstance(error.value, JobError)
    return error.value


@pytest.mark.parametrize(
    ("url", "refused", "name", "close"),
    [
        ("s3://shop/a", {"ky": "abc"}, "ky", "'key'"),
        ("s3://shop/a", {"endpont_url": "http://h"}, "endpont_url", "'endpoint_url' or 'endpoint' or 'sts_endpoint'"),
        (
            "s3://shop/a",
            {"client_kwargs": {"regoin_name": "eu"}},
            "client_kwargs.regoin_name",
            "'region_name' or 'role_session_name'",
        ),
        ("s3://shop/a", {"config_kwargs": {"retry": 1}}, "config_kwargs.retry", ""),
        ("https://127.0.0.1:1/a", {"client_kwarg": {}}, "client_kwarg", "'client_kwargs'"),
        ("https://127.0.0.1:1/a", {"client_kwargs": {"haeders": {}}}, "client_kwargs.haeders", ""),
        ("gs://shop/a", {"tokn": "cloud"}, "tokn", "'token'"),
        ("abfs://shop/a", {"acount_name": "shop"}, "acount_name", "'account_name' or 'account_key' or 'account_host'"),
    ],
)  # fmt: skip
def test_a_misspelt_option_is_named_with_those_near_it(
    url: str, refused: dict[str, Any], name: str, close: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda package: object())  # obstore is installed
    looks: list[Callable[[StorageOptions], Any]] = [
        lambda options: list_files(url, options),
        lambda options: expand(url, options),
        lambda options: open_store(url, options).list_folder(url),
        lambda options: open_store(url, options).open(url),
        lambda options: [*open_store(url, options).list_pages(url)],
    ]
    for look in looks:
        error = refuse(lambda look=look: look(storage(refused, "source.storage_options")))  # type: ignore[misc]
        assert error.what == f"the storage has no option {name!r}"
        assert error.where == f"source.storage_options, for {url}"
        assert error.do == (f"did you mean {close}? {CORRECT}" if close else CORRECT)
        assert "abc" not in str(error)


def test_an_option_that_the_client_of_an_output_lacks_is_named() -> None:
    error = refuse(lambda: Staging("s3://shop/out", storage_options={"ky": "abc"}).mirror.store)  # type: ignore[union-attr]
    assert error.what == "the storage has no option 'ky'"
    assert error.where == "output.storage_options, for s3://shop/out"
    assert error.do == f"did you mean 'key'? {CORRECT}"


def test_the_advice_says_where_options_with_a_name_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROWMILL_STORAGE_SHOP", json.dumps({"ky": "abc"}))
    error = refuse(lambda: list_files("s3://shop/a", storage("shop")))
    assert error.do == (
        f"did you mean 'key'? {CORRECT}" + ", in ROWMILL_STORAGE_SHOP or the Secret block 'shop', where the workers run"
    )
    monkeypatch.setenv("ROWMILL_STORAGE_SHOP", json.dumps({"key": "abc", "secret": "def", "anon": True}))
    assert not isinstance(open_store("s3://shop/a", storage("shop")), JobError)


def test_another_type_error_of_a_client_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store("memory://a", {"name": 1})

    def fail(path: str, **more: Any) -> None:
        raise TypeError("got an unexpected keyword argument 'other'")

    monkeypatch.setattr(store.fs, "isdir", fail)  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="unexpected keyword argument 'other'"):
        store.list_folder("memory://a")


def job_that_names(**sections: Any) -> dict[str, Any]:
    return {
        "source": {"path": "data"},
        "features": [{"columns": ["x"], "ops": [{"op": "Normalize"}]}],
        "output": {"path": "out"},
        **sections,
    }


def save(path: str) -> None:
    Workflow(["x"] >> ops.Normalize()).fit(pa.table({"x": [1.0]})).save(path, storage_options="lost")


UNKNOWN_NAMES: list[tuple[str, Callable[[], Any]]] = [
    ("source.storage_options", lambda: read_options(Source(path="s3://shop/a", storage_options="lost"))),
    ("source.storage_options", lambda: make_application(
        {"fitted": "s3://shop/f", "source": {"path": "a", "storage_options": "lost"}, "output": {"path": "o"}})),
    ("source.storage_options", lambda: make_job(
        job_that_names(base="s3://shop/o", source={"path": "a", "storage_options": "lost"})).base_path),
    ("output.storage_options", lambda: Staging.of(
        Output(path="s3://shop/o", storage_options="lost"), make_job(job_that_names()).run).mirror.options),  # type: ignore[union-attr]
    ("Workflow.load(storage_options=)", lambda: Workflow.load("s3://shop/f", storage_options="lost")),
    ("Workflow.save(storage_options=)", lambda: save("s3://shop/f")),
    ("Dataset(storage_options=)", lambda: Dataset("s3://shop/o", versions="all", storage_options="lost")),
    ("storage_options of a side table", lambda: Workflow(
        ["x"] >> ops.JoinExternal("s3://shop/t.parquet", on="x", columns=["y"], storage_options="lost")
    ).fit(pa.table({"x": [1.0]}))),
    ("storage_options", lambda: open_published("s3://shop/o", "lost", "the output", "path").__enter__()),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(UNKNOWN_NAMES)))
def test_unknown_options_are_reported_at_the_place_that_names_them(
    number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    where, call = UNKNOWN_NAMES[number]
    error = refuse(call)
    assert error.what == "storage options 'lost' are not known"
    assert error.where == where


@pytest.mark.parametrize(
    "words",
    [
        ["verify", "s3://shop/o"],
        ["inspect", "s3://shop/o"],
        ["versions", "s3://shop/o"],
        ["report", "s3://shop/o"],
        ["diff", "s3://shop/o/v0001", "s3://shop/o/v0002"],
        ["discard", "s3://shop/o/v0001"],
        ["publish", "s3://shop/o"],
        ["clean", "s3://shop/o"],
    ],
    ids=lambda words: words[0],
)
def test_unknown_options_of_a_command_are_reported_as_its_own(
    words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    result = CliRunner().invoke(app, [*words, "--storage-options", "lost"], env={"COLUMNS": "200"})
    assert result.exit_code != 0
    shown = " ".join(result.output.split())
    assert "storage options 'lost' are not known where: --storage-options do:" in shown


def test_a_pickle_of_options_keeps_their_place() -> None:
    kept = pickle.loads(pickle.dumps(storage({"key": "a"}, "output.storage_options")))  # noqa: S301
    assert (kept.where, dict(kept)) == ("output.storage_options", {"key": "a"})
