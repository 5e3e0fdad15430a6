"""A first job for data behind a URL whose storage has options of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from rowmill.cli import app
from typer.testing import CliRunner

from flows.draft.draft import draft
from tests.object_store import ObjectStore

pytestmark = pytest.mark.system

CLICKS = "".join(f"{n};{n % 5};{n % 7},5;{n % 2}\n" for n in range(200))
TOWNS = "shop;town\n" + "".join(f"{n};town {n}\n" for n in range(5))
FILES = {
    "clicks/a.csv": f"number;shop;price;click\n{CLICKS}",
    "clicks/b.csv": f"number;shop;price;click\n{CLICKS}",
    "clicks/towns.csv": TOWNS,
}


@pytest.fixture
def shop(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv("ROWMILL_STORAGE_SHOP", json.dumps(object_store.options))
    monkeypatch.chdir(tmp_path)
    for path, text in FILES.items():
        object_store.put(f"{tmp_path.name}/{path}", text.encode())
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_text(text)
    return f"s3://shop/{tmp_path.name}/clicks"


def test_the_options_of_a_storage_are_used_for_all_that_is_read_and_named_in_the_draft(shop: str) -> None:
    drafted = CliRunner().invoke(app, ["new", shop, "--storage-options", "shop"])
    assert drafted.exit_code == 0, drafted.output
    assert drafted.stdout == draft(shop, storage_options="shop")
    job = yaml.safe_load(drafted.stdout)
    local = yaml.safe_load(draft("clicks"))
    assert job["source"] == {
        **local["source"],
        "path": [f"{shop}/a.csv", f"{shop}/b.csv"],
        "storage_options": "shop",
    }
    assert (job["features"], job["label"]) == (local["features"], ["click"])
    (join,) = [line for line in drafted.stdout.splitlines() if "JoinExternal" in line]
    assert yaml.safe_load(join.lstrip(" #-"))["ops"] == [
        {
            "op": "JoinExternal",
            "table": f"{shop}/towns.csv",
            "on": ["shop"],
            "columns": ["town"],
            "read": {"delimiter": ";"},
            "storage_options": "shop",
        }
    ]


def test_an_unknown_name_of_options_is_that_of_the_command(shop: str) -> None:
    refused = CliRunner().invoke(app, ["new", shop, "--storage-options", "lost"], env={"COLUMNS": "200"})
    assert refused.exit_code == 1
    assert "storage options 'lost' are not known where: --storage-options do:" in " ".join(refused.stderr.split())
