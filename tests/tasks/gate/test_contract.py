"""Contracts: mistakes, columns that are new, missing or retyped, nulls, domains and ranges, the proposed contract."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from flows.job.job import make_job
from tasks.core.contract import apply_contract, check_contract, make_contract
from tasks.core.schema import Column, Schema
from tasks.errors import DataError, JobError
from tasks.gate.contract_values import check_values, propose_contract
from tasks.profile.output_profile import ColumnProfile, Profile
from tests.stages import run_stages
from tests.tasks.gate.simulated import profile_of

SCHEMA = Schema([Column("price", pa.float64()), Column("kind", pa.string()), Column("extra", pa.int64())])
TABLE = pa.table({
    "price": pa.array([1.0, None, 250.0, 3.0]), "kind": ["view", "cart", "View", "view"], "id": [1, 2, 3, 4],
})  # fmt: skip


def texts(data: Any, table: pa.Table = TABLE) -> list[str]:
    findings, notes = check_values(profile_of(table), make_contract(data), "stop")
    assert {finding.level for finding in findings} <= {"stop"}
    return [*(finding.text for finding in findings), *notes]


@pytest.mark.parametrize(("data", "message"), [
    ({"colums": {}}, "colums is unknown: did you mean 'columns'"),
    ({"new_columns": "frezze"}, "new_columns: must be 'evolve', 'freeze' or 'discard_column', not 'frezze': "
                                "did you mean 'freeze'?"),
    ({"missing_columns": "discard_column"}, "missing_columns: must be 'evolve' or 'freeze'"),
    ({"columns": {"price": {"nuls": 0.1}}}, "columns.price.nuls is unknown: did you mean 'nulls'?"),
    ({"columns": {"price": {"nulls": 2}}}, "columns.price.nulls: must be at most 1"),
    ({"columns": {"price": {"type": "flaot64"}}}, "'flaot64' is not a type: did you mean 'float64'"),
    ({"columns": {"price": {"range": [5, 1]}}}, "the least value 5.0 is above the largest, 1.0"),
    ({"columns": {"price": {"range": [5]}}}, "needs two ends"),
    ({"columns": {"price": {"range": [0, 1], "values": [1]}}}, "values and range contradict each other"),
    (["price"], "the contract is not a map"),
])  # fmt: skip
def test_mistakes_are_named_with_what_is_near(data: Any, message: str) -> None:
    with pytest.raises(JobError) as caught:
        make_contract(data)
    assert message in str(caught.value)


def test_a_contract_may_stand_below_its_name() -> None:
    assert make_contract({"contract": {"new_columns": "freeze"}}).new_columns == "freeze"


RULES = {"columns": {"price": {"type": "float64"}, "kind": {"type": "string"}}}


def test_new_columns_evolve_freeze_or_are_left_out() -> None:
    schema, findings = apply_contract(SCHEMA, make_contract(RULES))
    assert [*schema] == ["price", "kind", "extra"]
    assert [finding.text for finding in findings] == [
        "column 'extra' (int64) is not in the contract: it is accepted as it is"
    ]
    schema, findings = apply_contract(SCHEMA, make_contract({**RULES, "new_columns": "discard_column"}))
    assert [*schema] == ["price", "kind"]
    assert (findings[0].action, findings[0].text[-18:]) == ("discard_column", "ct: it is left out")
    frozen = r"column 'extra' \(int64\) is not in the contract: the contract forbids that \(freeze\)"
    with pytest.raises(DataError, match=frozen):
        check_contract(SCHEMA, make_contract({**RULES, "new_columns": "freeze"}), "source.path")


def test_columns_of_another_type() -> None:
    rules = {"columns": {"price": {"type": "int64"}, "kind": {"type": "string"}, "extra": {"type": "number"}}}
    with pytest.raises(DataError, match="column 'price' is float64, the contract says int64"):
        check_contract(SCHEMA, make_contract(rules), "source.path")
    schema, findings = apply_contract(SCHEMA, make_contract({**rules, "retyped_columns": "discard_column"}))
    assert [*schema] == ["kind", "extra"]
    assert [finding.column for finding in findings] == ["price"]
    rules["columns"]["price"]["retyped"] = "evolve"
    schema, findings = apply_contract(SCHEMA, make_contract(rules))
    assert [*schema] == ["price", "kind", "extra"]
    assert findings[0].action == "evolve"
    nothing = Schema([Column("price", pa.null()), Column("kind", pa.string()), Column("extra", pa.int8())])
    assert apply_contract(nothing, make_contract(rules))[1] == ()  # a column of nulls only has no type yet


def test_missing_columns_are_named_with_near_ones() -> None:
    rules = {"columns": {"prise": {}}, "new_columns": "evolve"}
    with pytest.raises(DataError, match=r"the source has no column 'prise' \(did you mean 'price'\)"):
        check_contract(SCHEMA, make_contract(rules), "source.path")
    rules["columns"]["prise"]["missing"] = "evolve"
    assert [note.action for note in apply_contract(SCHEMA, make_contract(rules))[1]] == ["evolve"] * 4


EVENTS = Schema.from_arrow(
    pa.schema([
        ("session", pa.int64()),
        ("events", pa.list_(pa.struct([("aid", pa.int64()), ("item", pa.struct([("id", pa.string())]))]))),
    ])
)  # fmt: skip


@pytest.mark.promise("A field of a struct, or of the structs in a list, has its path for a name")
def test_fields_of_structs_have_rules_of_their_own() -> None:
    rules = {"new_columns": "freeze", "columns": {"session": {}, "events.aid": {"type": "list<int64>"}}}
    with pytest.raises(DataError) as caught:
        check_contract(EVENTS, make_contract(rules), "source.path")
    assert caught.value.why == "; ".join([
        "field 'events.item' (list<struct<id: string>>) is not in the contract: the contract forbids that (freeze)",
        "field 'events.item.id' (list<string>) is not in the contract: the contract forbids that (freeze)",
    ])  # fmt: skip
    for named in ("events.item", "events.item.id"):
        whole = {**rules, "columns": {**rules["columns"], named: {}}}  # type: ignore[dict-item]
        assert apply_contract(EVENTS, make_contract(whole)) == (EVENTS, ())
    column = {**rules, "columns": {"session": {}, "events": {}}}
    assert apply_contract(EVENTS, make_contract(column)) == (EVENTS, ())


def test_a_field_of_another_type_or_that_is_missing() -> None:
    rules = {"columns": {"events.aid": {"type": "string"}, "events.itm": {"missing": "evolve"}}}
    with pytest.raises(DataError, match=r"column 'events.aid' is list<int64>, the contract says string: .* \(freeze\)"):
        check_contract(EVENTS, make_contract(rules), "source.path")
    notes = apply_contract(EVENTS, make_contract({**rules, "retyped_columns": "evolve"})).notes
    assert "the source has no column 'events.itm' (did you mean 'events.item'" in notes[-1].text
    assert notes[-1].action == "evolve"


def test_a_field_is_compared_in_the_type_in_which_it_is_read() -> None:
    read = Schema([*EVENTS.columns, Column("events.aid", pa.list_(pa.string()))])
    rules = {"new_columns": "freeze", "columns": {"session": {}, "events": {}, "events.aid": {"type": "list<string>"}}}
    assert apply_contract(read, make_contract(rules)) == (read, ())
    rules["columns"] = {"session": {}}  # type: ignore[index]
    left = apply_contract(read, make_contract({**rules, "new_columns": "discard_column"}))
    assert [*left.schema] == ["session"]
    assert [note.column for note in left.notes] == ["events"]


@pytest.mark.parametrize("rules", [
    {"new_columns": "discard_column", "columns": {"session": {}, "events.item.id": {}}},
    {"columns": {"events.aid": {"type": "string", "retyped": "discard_column"}}},
])  # fmt: skip
def test_a_field_cannot_be_left_out(rules: dict[str, Any]) -> None:
    with pytest.raises(JobError, match="a field of a struct cannot be left out") as caught:
        apply_contract(EVENTS, make_contract(rules))
    assert caught.value.where == "the contract, events.aid"
    advised = {"columns": {"events.aid": {"type": "string", "retyped": "evolve"}, "events.item": {}, "session": {}}}
    assert apply_contract(EVENTS, make_contract({**rules, **advised})).schema == EVENTS


def test_rowmills_own_columns_are_not_looked_at() -> None:
    schema = Schema([Column("__row__", pa.int64())])
    assert [*apply_contract(schema, make_contract({"new_columns": "discard_column"}))[0]] == ["__row__"]


def test_nulls_ranges_and_domains_over_all_rows() -> None:
    assert texts({"columns": {"price": {"nulls": 0.25, "range": [0, 250]}, "kind": {"nulls": 0}}}) == []
    assert texts({"columns": {"price": {"nulls": 0.1}}}) == [
        "price: 25 % of 4 values are null, the contract allows 10 %"
    ]
    assert texts({"columns": {"price": {"range": [2, 100]}}}) == [
        "price: the least value is 1, below the contract's limit 2",
        "price: the largest value is 250, above the contract's limit 100",
    ]
    assert texts({"columns": {"kind": {"values": ["view", "cart"]}}}) == [
        "kind: 25 % of the rows have values outside of the contract's domain: 'View' (1) (did you mean 'view')"
    ]
    assert texts({"columns": {"id": {"values": [1, 2, 3.0, 4]}, "nobody": {"nulls": 0}}}) == []


def test_a_domain_that_cannot_be_checked_exactly_says_so() -> None:
    many = pa.table({"id": list(range(200))})
    assert "id: its domain was checked over its 100 most frequent values only" in texts(
        {"columns": {"id": {"values": list(range(200))}}}, many
    )


def test_times_have_ranges_as_texts() -> None:
    table = pa.table({"at": pa.array([0, 10**15], pa.timestamp("us"))})
    assert texts({"columns": {"at": {"range": ["2000-01-01", None]}}}, table) == [
        "at: the least value is 1970-01-01T00:00:00, below the contract's limit 2000-01-01"
    ]
    assert texts({"columns": {"at": {"range": [5, None]}}}, table) == [
        "at: the contract's limit 5.0 cannot be compared with values such as '1970-01-01T00:00:00'"
    ]


@pytest.mark.parametrize(
    ("ends", "side"),
    [
        (["2020-09-13 12:30", None], "below"), ([None, "2020-09-13 13:00:00"], ""), (["2020-09-13T12:26", None], ""),
        ([None, "2020-09-13"], ""), ([None, "2020-09"], ""), ([None, "2020-09-12"], "above"),
        (["2020-09-14", None], "below"), ([None, "2020-09-13T12:40Z"], "above"), (["13.09.2020", None], "be compared"),
        (["12:26", None], "be compared"),
    ],
)  # fmt: skip
def test_limits_of_times_are_compared_as_times(ends: list[str | None], side: str) -> None:
    at = pa.array(["2020-09-13T12:26:00", "2020-09-13T12:43:00.5"]).cast(pa.timestamp("us"))
    answer = texts({"columns": {"at": {"range": ends}}}, pa.table({"at": at}))
    assert side in answer[0] if side else answer == []


def of_column(dtype: str, low: Any, high: Any, **more: Any) -> Profile:
    column = ColumnProfile("x", dtype, rows=200, nulls=0, distinct=200, minimum=low, maximum=high, **more)
    return Profile(200, {"x": column})


@pytest.mark.parametrize(
    ("dtype", "value", "ends", "side"),
    [
        ("date32", "1970-01-01", ["1970-01-01T00:00:00", "1970-01-01"], ""),
        ("time32[s]", "12:30:00", ["12:30", "12:30:01"], ""), ("time32[s]", "12:30:00", [None, "12:29"], "above"),
        ("string", "b", ["a", "c"], ""), ("string", "b", [None, "a"], "above"),
    ],
)  # fmt: skip
def test_limits_of_dates_of_times_of_the_day_and_of_texts(dtype: str, value: str, ends: list[Any], side: str) -> None:
    contract = make_contract({"columns": {"x": {"range": ends}}})
    findings, _ = check_values(of_column(dtype, value, value), contract, "stop")
    assert side in findings[0].text if side else findings == []


@pytest.mark.parametrize(("low", "high"), [(-1e-9, 1e-7), (-1e17, 3e18), (-9e300, 8e300), (0.5, 3.0)])
def test_a_proposed_contract_holds_for_numbers_of_any_size(low: float, high: float) -> None:
    for infinite in (0, 5):
        profile = of_column("float64", low, high, infinite=infinite)
        contract = make_contract(yaml.safe_load(propose_contract(profile, "v0001")))
        assert check_values(profile, contract, "stop")[0] == []
        ends = contract.columns["x"].range or ()
        assert [isinstance(end, float) for end in ends] == ([] if infinite else [True, True])


def test_a_proposed_contract_holds_for_what_it_was_made_of() -> None:
    table = pa.table({
        "kind": ["a", "b", None, "yes"] * 50, "x": [-3.5, 0.0, 199.0, 4.25] * 50, "id": list(range(200)),
        "flag": [True, False] * 100, "no": pa.nulls(200, pa.string()), "big": list(range(10**12, 10**12 + 200)),
    })  # fmt: skip
    text = propose_contract(profile_of(table), "v0001")
    contract = make_contract(yaml.safe_load(text))
    schema = Schema.from_arrow(table.schema)
    assert [*apply_contract(schema, contract)[0]] == [*schema]
    assert apply_contract(schema, contract)[1] == ()
    assert check_values(profile_of(table), contract, "stop")[0] == []
    assert contract.columns["kind"].values == ["a", "b", "yes"]
    assert set(contract.columns["x"].values or ()) == {-3.5, 0.0, 199.0, 4.25} or contract.columns["x"].range == [
        -7,
        400,
    ]
    assert "# A contract, proposed by `rowmill contract` from 200 rows of v0001." in text


def job(folder: Path, contract: Any) -> dict[str, Any]:
    source = folder / "data.parquet"
    pq.write_table(pa.table({"x": [1.0, 2.0], "extra": ["a", "b"], "y": [1, 2]}), source)
    return {"source": {"path": str(source)}, "output": {"path": str(folder / "out")}, "contract": contract,
            "features": [{"columns": ["x", "y"]}]}  # fmt: skip


def test_ingest_reads_a_source_under_its_contract(tmp_path: Path) -> None:
    rules = {"columns": {"x": {"type": "float64"}, "y": {"type": "int64"}}, "new_columns": "discard_column"}
    results = run_stages(make_job(job(tmp_path, rules)).request("pandas"))
    assert results[0].contract == "column 'extra' (string) is not in the contract: it is left out"
    rules["new_columns"] = "freeze"
    (folder := tmp_path / "again").mkdir()
    with pytest.raises(DataError, match="the source does not match the contract"):
        run_stages(make_job(job(folder, rules)).request("pandas"))


def test_a_column_that_is_left_out_is_not_there_for_the_features(tmp_path: Path) -> None:
    rules = {"columns": {"x": {}}, "new_columns": "discard_column"}
    with pytest.raises(JobError, match="there is no column 'y'"):
        run_stages(make_job(job(tmp_path, rules)).request("pandas"))


def test_a_file_without_a_column_lacks_its_fields(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    item = pa.array([{"id": 1}, {"id": 2}])
    pq.write_table(pa.table({"x": [1.0, 2.0], "item": item}), tmp_path / "data/a.parquet")
    pq.write_table(pa.table({"x": [3.0]}), tmp_path / "data/b.parquet")

    def run(rule: str) -> int:
        data = job(tmp_path, {"columns": {"x": {}, "item.id": {"missing": rule}}})
        data |= {"source": {"path": str(tmp_path / "data")}, "features": [{"columns": ["x", "item.id"]}]}
        return int(run_stages(make_job(data).request("pandas"))[0].rows)

    with pytest.raises(DataError, match="column 'item' is missing in a file, and the contract forbids that"):
        run("freeze")
    assert run("evolve") == 3


@pytest.mark.promise("`columns` names columns that the run reads: another name is an error with names that exist")
def test_a_check_names_columns_that_the_run_reads(tmp_path: Path) -> None:
    def results(name: str, contract: Any = None) -> Any:
        (folder := tmp_path / name).mkdir()
        data = {**job(folder, contract), "checks": {"nulls": {"columns": ["x", name]}}}
        return run_stages(make_job(data).request("pandas"))

    for name, contract, hint in (("xx", None, "did you mean 'x'?"), ("extra", None, "there are: x, y")):
        with pytest.raises(JobError, match=rf"the run reads no column '{name}'") as error:
            results(name, contract)
        assert (error.value.where, error.value.do) == ("checks.nulls.columns", hint)
    assert results("y")[0].rows == 2
    may_be_missing = {"columns": {"z": {"missing": "evolve"}}}
    assert results("z", may_be_missing)[0].rows == 2


def test_a_job_names_the_file_of_its_contract(tmp_path: Path) -> None:
    path = tmp_path / "contract.yaml"
    path.write_text("columns:\n  x: {type: number}\n  y: {type: number}\n")
    request = make_job(job(tmp_path, str(path))).request("pandas")
    assert request.rules is not None
    assert request.rules.columns["x"].type == "number"
    path.write_text("columns: {x: {tpye: number}}")
    with pytest.raises(JobError, match="did you mean 'type'"):
        make_job(job(tmp_path, str(path)))
    with pytest.raises(JobError, match="the contract cannot be read"):
        make_job(job(tmp_path, str(tmp_path / "none.yaml")))


def test_the_plan_is_made_anew_under_another_contract(tmp_path: Path) -> None:
    one = make_job(job(tmp_path, None)).request("pandas")
    other = make_job(job(tmp_path, {"new_columns": "evolve"})).request("pandas")
    assert one.plan_fingerprint != other.plan_fingerprint
