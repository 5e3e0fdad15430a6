"""A state on disk: readable, checked, never pickle."""

from __future__ import annotations

import json
import math
import pickle
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.errors import DataError, JobError
from tasks.graph.state import Saving, State, check_saved, copy_saved, list_state_files, load_changes
from tests.learning import close

STATE = State(
    {
        "1/Categorify/a": {"values": pa.table({"v0": ["é", "b"], "count": [2, 1]}), "size": 2, "nulls": 0},
        "2/Normalize/x": {"n": 3, "mean": 0.1 + 0.2, "std": 1e-300},
    },
    {"2/Normalize/x": {"partial": [3, 0.30000000000000004, 0.0]}},
)


def test_what_is_saved_is_loaded_bit_by_bit(tmp_path: Path) -> None:
    digest = STATE.save(tmp_path)
    loaded = State.load(tmp_path, digest=digest)
    assert close(loaded.values, STATE.values)
    assert close(loaded.partials, STATE.partials)
    assert State.load(tmp_path, partials=False).partials == {}
    assert loaded.save(tmp_path / "again") == digest


@pytest.mark.promise("saves a folder that a person can read")
def test_a_person_can_read_it(tmp_path: Path) -> None:
    STATE.save(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["partials.json", "state.json", "v000-values.vocab"]
    data = json.loads((tmp_path / "state.json").read_text())
    assert data["fitted"]["2/Normalize/x"] == {"n": 3, "mean": 0.30000000000000004, "std": 1e-300}
    assert set(data["fitted"]["1/Categorify/a"]["values"]) == {"table", "rows", "sha256"}
    assert pq.read_table(pa.BufferReader((tmp_path / "v000-values.vocab").read_bytes())).num_rows == 2


def test_a_large_table_lies_in_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.graph.state.PART", 3)
    values = pa.table({"v0": ["a", "b", "c", None, "e", "f", "g"], "count": [7, 6, 5, 4, 3, 2, 1]})
    state = State({"1/C/x": {"values": values, "own": {"tables": [1, 2]}, "empty": values.slice(0, 0)}}, {"1/C/x": {}})
    digest = state.save(tmp_path)
    parts = [f"v000-values-000{i}.vocab" for i in range(3)]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["partials.json", "state.json", "v000-empty.vocab", *parts]
    found = State.load(tmp_path, digest=digest)
    assert close(found.values, state.values)
    assert copy_saved(tmp_path, tmp_path / "two") == digest
    check_saved(tmp_path / "two", digest)
    (tmp_path / "two" / parts[1]).unlink()
    with pytest.raises(DataError, match=r"the table v000-values-0001\.vocab is missing"):
        State.load(tmp_path / "two")
    State({"1/C/x": {"values": values.slice(0, 3)}}).save(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["partials.json", "state.json", "two", "v000-values.vocab"]


def test_of_large_vocabularies_a_report_reads_the_heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.graph.state.PART", 3)
    values = pa.table({"v0": list("abcdefg"), "count": [7, 6, 5, 4, 3, 2, 1]})
    counted = {"values": values, "rest": values, "size": 7, "distinct": 14, "occurrences": 56, "nulls": 0}
    given, groups = {"values": values, "size": 7, "nulls": 0}, {"groups": values}
    State({"counted": counted, "given": given, "groups": groups}).save(tmp_path)
    heads = State.load_heads(tmp_path)
    head = values.slice(0, 3)
    left_out = [*tmp_path.glob("v000-values-000[12].vocab"), *tmp_path.glob("v000-rest-000[12].vocab")]
    tables = sum(file.stat().st_size for file in tmp_path.glob("*.vocab"))
    assert State.bytes_of_heads(tmp_path) == tables - sum(file.stat().st_size for file in left_out) < tables
    assert close(heads.values, {"counted": counted | {"values": head, "rest": head}, "given": given, "groups": groups})


def test_keys_that_are_numbers_lie_byte_by_byte(tmp_path: Path) -> None:
    """Ids in order take a third of the bytes of plain ones, random ones as many."""
    rng = np.random.default_rng(2)
    tables = {
        "in order": np.sort(rng.integers(0, 1 << 30, 100_000)),
        "random": rng.integers(-(1 << 63), (1 << 63) - 1, 100_000),
    }
    nbytes = {}
    for name, keys in tables.items():
        table = pa.table({"v0": keys, "count": np.ones(100_000, dtype=np.int64)})
        State({"1/C/x": {"values": table}}).save(tmp_path / name)
        path = tmp_path / name / "v000-values.vocab"
        nbytes[name] = path.stat().st_size
        group = pq.read_metadata(path).row_group(0)
        assert ["BYTE_STREAM_SPLIT" in group.column(number).encodings for number in range(2)] == [True, False]
        assert pq.read_table(pa.BufferReader(path.read_bytes())).to_pydict() == table.to_pydict()
    assert 200_000 < nbytes["in order"] < 300_000
    assert 800_000 < nbytes["random"] < 820_000


WHOLE_NUMBERS = [
    *(pa.int8(), pa.uint16(), pa.int32(), pa.uint64(), pa.date32(), pa.time32("s"), pa.time64("ns")),
    *(pa.timestamp("s"), pa.timestamp("ns", "Europe/Berlin"), pa.duration("s"), pa.duration("us")),
]


def test_keys_of_any_type_and_name_come_back(tmp_path: Path) -> None:
    short, long = (pa.array([1, None, 86_399, 7], dtype) for dtype in (pa.int32(), pa.int64()))
    keys = {f"{dtype}.v": (short if dtype.bit_width == 32 else long).cast(dtype, safe=False) for dtype in WHOLE_NUMBERS}
    others = {
        "date64[ms]": pa.array([86_400_000, None, 0, 0]).cast(pa.date64()),
        "float": pa.array([0.5, None, float("inf"), -0.0]),
        "": pa.array(["é", None, "", "\0"]),
        "list": pa.array([[1, None], None, [], [2]]),
        "int8": pa.array([{"v": 1}, None, {"v": 3}, {"v": None}]),
    }
    table = pa.table(keys | others | {"null": pa.nulls(4)})
    tables = {"nulls": table, "none": table.take([0]), "empty": table.slice(0, 0)}
    State({"1/J/x": tables}).save(tmp_path)
    found = State.load(tmp_path).values["1/J/x"]
    assert all(found[name].equals(one) for name, one in tables.items())


def test_files_of_a_table_may_have_nulls_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.graph.state.PART", 2)
    table = pa.table({"v0": [1, 2, None, 4], "count": [4, 3, 2, 1]})
    State({"1/C/x": {"values": table}}).save(tmp_path)
    first, second = (pq.ParquetFile(tmp_path / f"v000-values-000{number}.vocab") for number in range(2))
    assert first.schema_arrow.field("v0").nullable < second.schema_arrow.field("v0").nullable
    assert State.load(tmp_path).values["1/C/x"]["values"].equals(table)


def test_saving_again_leaves_no_old_tables(tmp_path: Path) -> None:
    STATE.save(tmp_path)
    State({"1/Normalize/x": {"mean": 0.0}}).save(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["partials.json", "state.json"]


def test_partials_stay_in_the_folder_until_they_are_asked_for(tmp_path: Path) -> None:
    rest = {"rest": pa.table({"v0": ["z"], "count": [1]})}
    State(STATE.values, {"1/Categorify/a": rest}).save(tmp_path / "s")
    asked, late = State.load(tmp_path / "s"), State.load(tmp_path / "s")
    assert close(asked.partials["1/Categorify/a"], rest)
    shutil.rmtree(tmp_path / "s")
    assert close(late.values, STATE.values)
    assert close(asked.partials["1/Categorify/a"], rest)
    with pytest.raises(DataError, match=r"partials\.json is missing"):
        late.partials


@pytest.mark.parametrize("links", [True, False])
def test_a_saved_state_is_put_elsewhere_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    if not links:
        monkeypatch.setattr("os.link", _refuse)
    digest = STATE.save(tmp_path / "one")
    for _ in range(2):
        assert copy_saved(tmp_path / "one", tmp_path / "two") == digest
    check_saved(tmp_path / "two", digest)
    assert (tmp_path / "two" / "state.json").samefile(tmp_path / "one" / "state.json") == links
    shutil.rmtree(tmp_path / "one")
    assert close(State.load(tmp_path / "two", digest=digest).values, STATE.values)


def _refuse(*_: object) -> None:
    raise OSError(18, "Invalid cross-device link")


@pytest.mark.promise("once; every table is checked")
def test_damage_is_noticed(tmp_path: Path) -> None:
    digest = STATE.save(tmp_path)
    vocabulary = tmp_path / "v000-values.vocab"
    content = bytearray(vocabulary.read_bytes())
    content[20] ^= 1
    vocabulary.write_bytes(content)
    for look in (State.load, check_saved):
        with pytest.raises(DataError, match=r"(?s)the table v000-values.vocab is damaged.*its digest differs"):
            look(tmp_path)
    vocabulary.unlink()
    with pytest.raises(DataError, match=r"the table v000-values\.vocab is missing"):
        State.load(tmp_path)
    text = (tmp_path / "state.json").read_text()
    (tmp_path / "state.json").write_text(text.replace("0.30000000000000004", "0.40000000000000004"))
    with pytest.raises(DataError, match=r"state.json is damaged"):
        State.load(tmp_path, digest=digest)
    (tmp_path / "state.json").write_text(text[:-20])
    with pytest.raises(DataError, match=r"state.json is damaged"):
        State.load(tmp_path)
    (tmp_path / "state.json").unlink()
    with pytest.raises(DataError, match=r"(?s)state.json is missing.*a folder that Workflow.save wrote"):
        State.load(tmp_path)


@pytest.mark.parametrize(("number", "advice"), [(6, "upgrade rowmill"), (4, "fit the workflow again")])
def test_another_format_is_refused(tmp_path: Path, number: int, advice: str) -> None:
    (tmp_path / "state.json").write_text(json.dumps({"format": number, "fitted": {}, "partials": None}))
    with pytest.raises(DataError, match=rf"(?s)the state has format {number}, this version reads format 5.*{advice}"):
        State.load(tmp_path)


def test_what_only_a_refit_needs_can_be_left_out(tmp_path: Path) -> None:
    whole = STATE.save(tmp_path)
    assert STATE.save(tmp_path, keep_partials=False) != whole
    assert sorted(p.name for p in tmp_path.iterdir()) == ["state.json", "v000-values.vocab"]
    loaded = State.load(tmp_path)
    assert close(loaded.values, STATE.values)
    with pytest.raises(JobError, match=r"(?s)saved without what a refit needs.*run\.keep_partials was false"):
        loaded.partials


def test_what_a_refit_changed_lies_beside_the_state(tmp_path: Path) -> None:
    appended = pa.table({"v0": ["z"], "count": [4], "id": [5]})
    step = {"op": "Categorify", "columns": ["a"], "mode": "appended", "why": "", "old_size": 2, "appended": appended}
    changed = {"base": "v0006", "rows": {"old": 3, "new": 4}, "steps": {"1/Categorify/a": step}}
    digest = State(STATE.values, STATE.partials, changed).save(tmp_path / "s")
    assert copy_saved(tmp_path / "s", tmp_path / "t") == digest
    check_saved(tmp_path / "t", digest)
    loaded = State.load(tmp_path / "t")
    assert close(loaded.changes["1/Categorify/a"], step)
    assert load_changes(tmp_path / "t")["rows"] == {"old": 3, "new": 4}
    assert loaded.save(tmp_path / "u") == digest
    assert {p.name for p in list_state_files(tmp_path / "t")} == {p.name for p in (tmp_path / "t").iterdir()}
    text = (tmp_path / "t" / "changes.json").read_text()
    (tmp_path / "t" / "changes.json").write_text(text.replace("v0006", "v0007"))
    with pytest.raises(DataError, match=r"(?s)changes\.json is damaged.*its digest differs"):
        load_changes(tmp_path / "t")
    with pytest.raises(DataError, match=r"changes\.json is damaged"):
        check_saved(tmp_path / "t")
    STATE.save(tmp_path / "of a fit")
    assert load_changes(tmp_path / "of a fit") == {}


def test_infinities_are_saved_as_strict_json_that_a_person_can_read(tmp_path: Path) -> None:
    values = {"1/Own/x": {"median": math.inf, "edges": [-math.inf, 0.5], "of": {"y": -math.inf}}}
    State(values, {"1/Own/x": {"partial": [1, math.inf]}}).save(tmp_path)
    text = (tmp_path / "state.json").read_text()
    data = json.loads(text, parse_constant=_refuse)  # NaN and Infinity are not JSON
    assert data["fitted"]["1/Own/x"]["edges"] == [{"float": "-inf"}, 0.5]
    loaded = State.load(tmp_path)
    assert loaded.values == values
    assert loaded.partials == {"1/Own/x": {"partial": [1, math.inf]}}


def test_values_that_are_no_json_are_refused_when_saved(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"(?s)what 1/Own/x learned cannot be saved: mean.*plain JSON values"):
        State({"0/Other/y": {"mean": 1.0}, "1/Own/x": {"mean": object()}}).save(tmp_path)


def test_it_travels_without_its_lookups() -> None:
    assert pickle.loads(pickle.dumps(STATE)).values["2/Normalize/x"] == STATE.values["2/Normalize/x"]  # noqa: S301


def test_a_table_is_written_before_the_state_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.graph.state.PART", 3)
    values, rest, lost = (pa.table({"v0": list(range(n)), "count": [1] * n}) for n in (7, 2, 4))
    state = State({"1/C/x": {"values": values, "size": 7}, "2/C/y": {"values": rest}}, {"1/C/x": {"rest": rest}})
    digest = state.save(tmp_path / "at once")
    with Saving(tmp_path) as saving:
        saving.begin({"values": values, "size": 7})
        saving.begin({"values": lost})  # of a step that is learned again
        assert state.save(tmp_path, saving) == digest
    names = [
        "p000-rest.vocab",
        "partials.json",
        "state.json",
        *(f"v000-values-000{i}.vocab" for i in range(3)),
        "v001-values.vocab",
    ]
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == names
    assert close(State.load(tmp_path, digest=digest).values, state.values)


def test_a_table_that_cannot_be_written_is_told_when_the_state_is_saved(tmp_path: Path) -> None:
    with Saving(tmp_path / "gone") as saving:
        saving.begin(STATE.values["1/Categorify/a"])
        with pytest.raises(FileNotFoundError):
            next(iter(saving._begun.values()))[1][0].result()
        with pytest.raises(FileNotFoundError):
            STATE.save(tmp_path / "gone", saving)
