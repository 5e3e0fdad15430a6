"""The policies of the manual are enough for what a store does, and for nothing else: moto's server enforces them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.errors import JobError
from tasks.storage.store import MissingFileError, Store
from tasks.storage.stores import open_store

pytestmark = pytest.mark.system
MANUAL = Path(__file__).parents[3] / "infra" / "README.md"
READING, WRITING = re.findall(r"```json\n(\{\"Version\".*?)\n```", MANUAL.read_text(), re.DOTALL)
# moto wants the right to delete several objects on the bucket; AWS wants it on each of them.
OF_MOTO = {"Effect": "Allow", "Action": "s3:DeleteObject", "Resource": "arn:aws:s3:::shop"}


@pytest.fixture
def open_as(object_store: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], Store]]:
    """A function that opens the bucket as a new user with a policy."""
    from moto import settings
    from moto.iam.models import iam_backends

    users = iam_backends["123456789012"]["aws"]
    for key in ("logs/a.csv", "other/a.csv", "out/a.csv"):
        object_store.put(key, b"12345")

    def open_as_user(name: str, policy: str) -> Store:
        users.create_user("us-east-1", name)
        document = json.loads(policy)
        document["Statement"] += [OF_MOTO] if "s3:DeleteObject" in policy else []
        users.put_user_policy(name, "rights", json.dumps(document))
        keys = users.create_access_key(name)
        monkeypatch.setattr(settings, "INITIAL_NO_AUTH_ACTION_COUNT", 0)  # from now on
        return open_store(
            "s3://shop", {**object_store.options, "key": keys.access_key_id, "secret": keys.secret_access_key}
        )

    yield open_as_user
    object_store.backend.delete_object("shop", "out/a.csv")


@pytest.mark.promise("takes this policy of AWS", "infra/README.md#object-stores")
def test_a_reader_reads_and_no_more(open_as: Callable[[str, str], Store]) -> None:
    store = open_as("reader", READING)
    (page,) = store.list_pages("s3://shop/logs")
    assert [file.path for file in page] == ["s3://shop/logs/a.csv"]
    assert bytes(store.read_ranges(store.stat("s3://shop/logs/a.csv"), [(1, 3)])[0]) == b"23"
    assert store.list_folder("s3://shop/logs")[0] == page
    with pytest.raises(MissingFileError):
        store.stat("s3://shop/logs/none")
    refused: list[Callable[[], object]] = [
        lambda: store.stat("s3://shop/other/a.csv"),
        lambda: store.put_if_absent("s3://shop/logs/b.csv", b"1"),
        lambda: store.copy("s3://shop/logs/a.csv", "s3://shop/logs/b.csv"),
        lambda: store.delete(["s3://shop/logs/a.csv"]),
    ]
    for do in refused:
        with pytest.raises(JobError, match="the storage refuses this user"):
            do()


@pytest.mark.promise("To write below `s3://shop/out/` as well", "infra/README.md#object-stores")
def test_a_writer_does_all_that_a_store_does(open_as: Callable[[str, str], Store], tmp_path: Path) -> None:
    (tmp_path / "part").write_bytes(os.urandom(9 * 2**20))
    store = open_as("writer", WRITING)
    first = store.put_if_absent("s3://shop/out/pointer", b"1")
    store.put_if_unchanged("s3://shop/out/pointer", b"2", first.version)
    store.upload(tmp_path / "part", "s3://shop/out/part")
    store.copy("s3://shop/out/part", "s3://shop/out/copy")
    names = [f"s3://shop/out/{name}" for name in ("a.csv", "copy", "part", "pointer")]
    assert sorted(file.path for page in store.list_pages("s3://shop/out") for file in page) == names
    store.delete(names)
    assert list(store.list_pages("s3://shop/out")) == []
    for do in (lambda: store.put_if_absent("s3://shop/logs/b.csv", b"1"), lambda: store.stat("s3://shop/logs/a.csv")):
        with pytest.raises(JobError, match="the storage refuses this user"):
            do()
