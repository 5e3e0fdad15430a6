"""Commands whose output cannot hold every character: names are escaped, and what is to become a file can be read."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from rowmill.cli import main

from flows.job.job import make_job
from tests.stages import run_stages

NAMES = ["größe", "日本", "😀"]
Run = Callable[..., str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source whose names are not ASCII, and an output made of it."""
    folder = tmp_path_factory.mktemp("names") / "größe"
    folder.mkdir()
    (folder / "in.csv").write_text(",".join(NAMES) + "\n" + "1,é,2\n3,ü,4\n" * 30)
    job: dict[str, Any] = {
        "source": {"path": str(folder / "in.csv"), "bad_lines": "skip"},
        "features": [{"columns": NAMES}],
        "output": {"path": str(folder / "out"), "shuffle": "none", "files": 1},
        "run": {"profile": True},
    }
    run_stages(make_job(job).request("pandas"))
    return folder


@pytest.fixture(params=["ascii", "latin-1", "utf-8"])
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Run:
    """run(*words) is the output of a command, decoded as its standard output was encoded."""

    def run(*words: str) -> str:
        out, error = (io.TextIOWrapper(io.BytesIO(), encoding=request.param, write_through=True) for _ in range(2))
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", error)
        monkeypatch.setattr(sys, "argv", ["rowmill", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        text = error.buffer.getvalue().decode(request.param)  # type: ignore[attr-defined]
        assert not ended.value.code, text
        return str(out.buffer.getvalue().decode(request.param))  # type: ignore[attr-defined]

    run.encoding = request.param  # type: ignore[attr-defined]
    return run


def escaped(text: str, run: Any) -> str:
    return text.encode(run.encoding, "backslashreplace").decode(run.encoding)


def test_names_are_escaped_where_the_output_cannot_hold_them(run: Run, folder: Path) -> None:
    out = str(folder / "out")
    assert "whole: " in run("verify", out)
    for words in (("inspect", out), ("lineage", out), ("diff", out, out)):
        text = run(*words)
        if words[0] != "diff":
            assert all(escaped(name, run) in text for name in NAMES), text
    assert escaped(str(folder), run) in run("report", out)
    run("versions", out)
    run("ops")


def test_a_draft_and_a_contract_can_be_read(run: Run, folder: Path) -> None:
    draft = yaml.safe_load(run("new", str(folder / "in.csv")))
    assert draft["source"]["path"] == str(folder / "in.csv")
    columns = [name for entry in draft["features"] for name in entry["columns"]]
    assert {*NAMES} <= {*columns} | {*draft.get("label", [])}
    contract = yaml.safe_load(run("contract", str(folder / "out")))
    assert sorted(contract["columns"]) == sorted(NAMES)
    assert {"é", "ü"} <= {*contract["columns"]["日本"]["values"]}


def test_sizes_and_schemas_can_be_read(run: Run, folder: Path) -> None:
    assert json.loads(run("inspect", str(folder / "out"), "--embeddings")) == {}
    text = run("inspect", str(folder / "out"), "--merlin")
    octal = "".join(f"\\{byte:03o}" if byte > 127 else chr(byte) for byte in "größe".encode())
    assert f'name: "{"größe" if "utf" in run.encoding else octal}"' in text  # type: ignore[attr-defined]
