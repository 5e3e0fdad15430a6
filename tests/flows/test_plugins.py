"""Plugins of installed packages: the page's examples in runs, and who decides which are loaded."""

from __future__ import annotations

import json
import re
import sys
import tomllib
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rowmill import DataError, HostError

from flows.preprocess import preprocess
from tests.flows.runs import call

pytestmark = [pytest.mark.xdist_group("flows"), pytest.mark.usefixtures("stages_here")]
PAGE = (Path(__file__).resolve().parents[2] / "flows/PLUGINS.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(PROJECT,) = [tomllib.loads(text) for text in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)]
Install = Callable[[str, dict[str, str]], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts a package with plugins where Python searches for packages, as pip would, until the test ends."""
    before = set(sys.modules)

    def put(code: str, points: dict[str, str]) -> None:
        site = tmp_path / "site"
        site.mkdir()
        (site / "shop_plugins.py").write_text(code)
        about = site / "shop_plugins-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: shop-plugins\nVersion: 1.0\n")
        lines = [f"{name} = {value}\n" for name, value in points.items()]
        (about / "entry_points.txt").write_text("[rowmill.plugins]\n" + "".join(lines))
        monkeypatch.syspath_prepend(site)

    yield put
    for module in set(sys.modules) - before:
        if module == "shop_plugins":
            del sys.modules[module]


def job(folder: Path, rows: int) -> dict[str, Any]:
    pq.write_table(pa.table({"x": [0.5] * rows}), folder / "in.parquet")
    output = {"path": str(folder / "out"), "on_existing": "replace"}
    return {"source": {"path": str(folder / "in.parquet")}, "features": [{"columns": ["x"]}], "output": output}


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that were posted to the webhook."""
    texts: list[str] = []

    def urlopen(request: urllib.request.Request, timeout: float) -> None:
        assert request.full_url == "http://chat/hook"
        assert isinstance(request.data, bytes)
        texts.append(json.loads(request.data)["text"])

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    monkeypatch.setenv("CHAT_WEBHOOK", "http://chat/hook")
    return texts


@pytest.mark.promise(
    "A check of one's own, which stops a run before anything is published", "flows/PLUGINS.md#write-one"
)
@pytest.mark.promise("Each run logs the plugins that it has", "flows/PLUGINS.md#install-and-allow-it")
def test_the_plugins_of_the_page(
    tmp_path: Path, install: Install, chat: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install("\n".join(EXAMPLES), PROJECT["project"]["entry-points"]["rowmill.plugins"])
    import shop_plugins  # type: ignore[import-not-found]

    monkeypatch.setattr(shop_plugins, "ELSEWHERE", tmp_path / "elsewhere")
    monkeypatch.setenv("ROWMILL_PLUGINS", "enough-rows, copy-elsewhere tell-chat")
    out = tmp_path / "out"
    with pytest.raises(DataError, match="only 999 rows"):
        call(preprocess, job(tmp_path, 999))
    assert not out.exists()
    assert not (tmp_path / "elsewhere").exists()
    assert call(preprocess, job(tmp_path, 1_000)) == [str(out)]
    copied = tmp_path / "elsewhere" / out.relative_to("/")
    assert (copied / "_manifest.json").read_bytes() == (out / "_manifest.json").read_bytes()
    where = f"\n  where: {out}\n  do: look at the source of this run"
    assert chat == [f"{out} failed: only 999 rows{where}", f"published {out}"]
    said = [line.partition(" of ") for line in caplog.messages if line.startswith("plugin ")]
    assert [name for name, *_ in said[:3]] == ["plugin enough-rows", "plugin copy-elsewhere", "plugin tell-chat"]
    where = "package shop-plugins 1.0, entry point enough-rows = shop_plugins:EnoughRows of rowmill.plugins"
    assert said[0][2] == where


@pytest.mark.promise("a plugin that is installed and not named is not imported")
def test_a_plugin_that_the_host_does_not_name_is_not_imported(
    tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("raise SystemExit('imported')", {"mine": "shop_plugins:Mine"})
    for text in (None, "", " , "):
        if text is not None:
            monkeypatch.setenv("ROWMILL_PLUGINS", text)
        assert call(preprocess, job(tmp_path, 3)) == [str(tmp_path / "out")]
    assert "shop_plugins" not in sys.modules


@pytest.mark.parametrize(
    ("code", "names", "said"),
    [
        (
            "",
            "others",
            r"there is no plugin 'others'\n  where: ROWMILL_PLUGINS of this host(.|\n)*did you mean 'other'",
        ),
        (
            "",
            "other",
            r"the plugin 'other' cannot be used(.|\n)*AttributeError: .*(.|\n)*leave its name out of ROWMILL_P",
        ),
        ("class Other: pass", "other", "shop_plugins:Other is not a subclass of rowmill.RunPlugin"),
        ("raise SystemExit('no')", "other", "why: SystemExit: no"),
    ],
)
def test_a_plugin_that_cannot_be_made_is_named(
    tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch, code: str, names: str, said: str
) -> None:
    install(code, {"other": "shop_plugins:Other"})
    monkeypatch.setenv("ROWMILL_PLUGINS", names)
    with pytest.raises(HostError, match=said):
        call(preprocess, job(tmp_path, 3))
    assert not (tmp_path / "out").exists()
