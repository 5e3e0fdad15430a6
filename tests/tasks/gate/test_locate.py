"""Findings name the files in which a change begins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.contract import Contract, make_contract
from tasks.core.plan import Plan
from tasks.core.settings import Checks
from tasks.dataset import Dataset
from tasks.gate import locate
from tasks.gate.decide import judge
from tasks.gate.locate import add_files
from tasks.gate.verdict import Finding, Verdict
from tests.examples import nightly
from tests.tasks.gate import test_faults as faults
from tests.tasks.gate.simulated import profile_of

pytestmark = pytest.mark.xdist_group("nights of the gate")  # the process that has made them
Fault = Callable[[pa.Table], pa.Table]
FILES, FIRST_BAD, NIGHT = 5, 2, 30
STOP = Checks(on_finding="stop")


def in_files(folder: Path, table: pa.Table, fault: Fault) -> tuple[pa.Table, Plan]:
    """(the rows of a night, the plan of its five files): the fault begins in the third file."""
    size, parts = len(table) // FILES, []
    for number in range(FILES):
        part = table.slice(number * size, size)
        parts.append(fault(part) if number >= FIRST_BAD else part)
        pq.write_table(parts[-1], folder / f"{number}.parquet")
    return pa.concat_tables(parts), Dataset(str(folder)).plan


def names(finding: Finding) -> list[str]:
    return [Path(path).name for path in finding.files]


def located(folder: Path, table: pa.Table, fault: Fault, contract: Contract | None = None) -> Verdict:
    rows, plan = in_files(folder, table, fault)
    history, night = faults.history(NIGHT, faults.FEW), profile_of(rows)
    verdict = judge(night, history, contract, STOP, faults.shop(faults.FEW).day(NIGHT))
    return add_files(verdict, plan, night, history[0].profile, contract, None)


@pytest.mark.promise("A finding names the files in which its change begins")
@pytest.mark.parametrize("name", [
    "relabelled category", "seconds to milliseconds", "ids re-hashed", "nulls 1 % to 85 %", "a swapped pair of columns",
    *nightly(["prices in cents", "a new country"]),
])  # fmt: skip
def test_a_fault_that_begins_in_the_third_of_five_files(tmp_path: Path, name: str) -> None:
    fault, column, _ = faults.TWELVE[name]
    findings = [
        one for one in located(tmp_path, faults.table_of(NIGHT, faults.FEW), fault).findings
        if one.column in (column, *column.split(", ")) and one.check not in ("distinct", "associations")
    ]  # fmt: skip
    assert findings
    for one in findings:
        assert names(one) == ["2.parquet", "3.parquet", "4.parquet"], one.text
        assert one.text.endswith(f"; the change begins in {tmp_path}/2.parquet and 2 other files")


def test_what_breaks_a_contract_is_named_rule_by_rule(tmp_path: Path) -> None:
    contract = make_contract({"columns": {"score": {"nulls": 0.1}, "price": {"range": [0, 1e5]}}})
    rows = faults.table_of(NIGHT, faults.FEW)
    verdict = located(tmp_path, rows, faults.almost_all_null, contract)
    assert [names(one) for one in verdict.findings if one.check == "contract" and one.column == "score"] == [
        ["2.parquet", "3.parquet", "4.parquet"]
    ]


def test_rows_and_numbers_of_distinct_values_begin_in_no_file(tmp_path: Path) -> None:
    verdict = located(tmp_path, faults.table_of(NIGHT, faults.FEW), lambda part: part.slice(0, 10))
    assert "rows" in {one.check for one in verdict.findings}
    assert {one.files for one in verdict.findings if one.check in ("rows", "distinct")} == {()}


def test_a_constant_column_is_one_in_every_file(tmp_path: Path) -> None:
    rows, plan = in_files(tmp_path, faults.table_of(NIGHT, faults.FEW), faults.constant)
    finding = Finding("quantity", "constant", 1, 9, 1.0, 0.0, "stop", "quantity: all values are 1")
    [one] = add_files(Verdict("stop", (finding,)), plan, profile_of(rows), None, None, None).findings
    assert names(one) == ["2.parquet", "3.parquet", "4.parquet"]


@pytest.mark.promise("say what was not", "flows/NIGHTS.md#the-gate-nothing-bad-is-published")
def test_what_is_not_searched_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, plan = in_files(tmp_path, faults.table_of(NIGHT, faults.FEW), faults.constant)
    night = profile_of(rows)
    findings = tuple(
        Finding(name, "constant", 1, 9, 1.0, 0.0, "stop", f"{name}: one value") for name in ("quantity", "country")
    )
    verdict = Verdict("stop", findings, notes=("a note",))
    monkeypatch.setattr(locate, "MOST_COLUMNS", 1)
    monkeypatch.setattr(locate, "MOST_SPAN", 3 * len(rows) // FILES)
    searched = add_files(verdict, plan, night, None, None, None)
    assert [names(one) for one in searched.findings] == [["2.parquet"], []]
    assert searched.findings[1].text == "country: one value"
    assert searched.notes == (
        "a note",
        "the files in which a change begins were not searched for country",
        "quantity: only 3 of 5 files were searched for where its change begins",
    )
    (tmp_path / "1.parquet").unlink()
    gone = add_files(verdict, plan, night, None, None, None)
    assert gone.findings == findings
    assert gone.notes[-1].startswith("quantity: the files in which its change begins could not be searched: ")


def test_paths_are_written_as_people_may_see_them(tmp_path: Path) -> None:
    rows, plan = in_files(tmp_path, faults.table_of(NIGHT, faults.FEW), faults.constant)
    finding = Finding("quantity", "constant", 1, 9, 1.0, 0.0, "stop", "quantity: one value")
    verdict = Verdict("stop", (finding,))
    [one] = add_files(verdict, plan, profile_of(rows), None, None, None, lambda path: path[-9:]).findings
    assert one.files == ("2.parquet", "3.parquet", "4.parquet")
    assert one.text == "quantity: one value; the change begins in 2.parquet and 2 other files"
