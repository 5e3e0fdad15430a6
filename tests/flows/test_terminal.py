"""Names and values with control characters or Markdown in them: they are shown, and do nothing."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.table import Table

from flows.commands.console import Terminal, say_error
from flows.commands.inspect import show_folder
from flows.job.job import make_job
from flows.preview.preview_tables import print_rows
from tasks.core.markdown import Markdown, escape_markdown, escape_rows, markdown_table
from tasks.core.stage_results import IngestResult
from tasks.report.artifact import stage_markdown
from tests.stages import run_stages

HOSTILE = "a\x1b[2J\x9b31m\u202eb"
SHOWN = r"a\x1b[2J\x9b31m\u202eb"
PICTURE = "![x](http://h/y) <b>|www.h.org a@h.org\n# z"


def printed(width: int = 100) -> Terminal:
    return Terminal(file=io.StringIO(), width=width, highlight=False)


def text_of(console: Terminal) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [30, 100])
def test_rows_of_a_table_are_shown_whole(width: int) -> None:
    console = printed(width)
    print_rows([HOSTILE], [["x\ny"], ["\x07"]], console)
    text = text_of(console)
    assert not {*text} & {*"\x1b\x9b\x07\u202e"}
    assert SHOWN in text.replace("\n", "")
    assert r"x\ny" in text


def test_whatever_is_printed_has_no_control_characters() -> None:
    console = printed()
    console.print(HOSTILE, markup=False)
    table = Table(HOSTILE)
    table.add_row(HOSTILE)
    console.print(table)
    assert not {*text_of(console)} & {*"\x1b\x9b\u202e"}
    assert text_of(console).startswith(f"{SHOWN}\n")


def test_an_error_is_shown_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    say_error(f"there is no column {HOSTILE}\n  where: x\ty")
    assert capsys.readouterr().err == f"error: there is no column {SHOWN}\n  where: x      y\n"


def test_inspect_of_an_output_with_hostile_names_and_values(tmp_path: Path) -> None:
    pq.write_table(pa.table({HOSTILE: ["v\x1b]0;title\x07"], "n": [1]}), tmp_path / "a.parquet")
    job = {"source": {"path": str(tmp_path / "a.parquet")}, "output": {"path": str(tmp_path / "out")},
           "features": [{"columns": [HOSTILE, "n"]}]}  # fmt: skip
    run_stages(make_job(job).request("pandas"))
    console = printed()
    show_folder(tmp_path / "out", console=console)
    assert not {*text_of(console)} & {*"\x1b\x9b\x07\u202e"}
    assert SHOWN in text_of(console)
    assert r"v\x1b]0;title\x07" in text_of(console)


def test_texts_of_the_data_are_no_markdown() -> None:
    assert escape_markdown(PICTURE) == r"!\[x\](http\://h/y) \<b\>\|www\.h.org a\@h.org \# z"
    assert escape_markdown("user_id 3.5 12:00 (a) -1 AT&T") == "user_id 3.5 12:00 (a) -1 AT&T"
    assert escape_markdown("_a_ &lt; ~~b~~") == r"\_a\_ \&lt; \~\~b\~\~"
    assert escape_markdown(Markdown("[a](b)")) == "[a](b)"
    assert markdown_table([{"x": PICTURE, "y": 1.5}]).splitlines()[2] == f"| {escape_markdown(PICTURE)} | 1.5 |"
    assert escape_rows([{"x": "[a](b)", "n": 3}]) == [{"x": r"\[a\](b)", "n": 3}]


def test_the_summary_of_ingest_has_no_markdown_of_the_data() -> None:
    counts = dict.fromkeys(
        ("files", "skipped", "blocks", "partitions", "columns", "output_columns", "threads", "workers"), 1
    )
    texts = {"contract": "column '![x](http://h)' is new", "left_out": "a|b"}
    result = IngestResult(rows=3, nbytes=9, seconds=1.0, **counts, **texts)  # type: ignore[arg-type]
    text = stage_markdown(result)
    assert r"| contract | column '!\[x\](http\://h)' is new |" in text
    assert r"| left out | a\|b |" in text
