"""Thirty nights on one output, each compared with what plain Python computes: the job changes between them, versions
are discarded, damaged, moved and removed, and readers read meanwhile."""

from __future__ import annotations

import copy
import csv
import hashlib
import json
import math
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flows.commands.discard import discard_version, restore_version
from flows.job.job import make_application, make_job
from flows.nights.base import BasePlugin
from tasks.core.contract import make_contract
from tasks.core.settings import Checks
from tasks.dataset import Dataset
from tasks.errors import DataError, JobError
from tasks.gate.decide import judge
from tasks.gate.earlier_outputs import read_good_versions
from tasks.loading import loader
from tasks.profile.output_profile import read_profile
from tasks.storage.discarded import is_discarded
from tasks.storage.retention import read_removed_versions
from tasks.workflow import Workflow
from tests.flows.runs import rows_of
from tests.flows.test_fit_apply import written
from tests.stages import run_stages
from tests.tasks.engines.test_murmur3 import reference
from tests.tasks.job.test_changed_job import Ids, entry

Columns = dict[str, list[Any]]


def columns_of(day: int) -> Columns:
    """The rows of a day. `k` has texts that are numbers (7 and 007), `q2` comes on day 3, `i` and `p` get nulls on day
    9, `p` fractions on day 19."""
    random = np.random.default_rng(day)
    rows = 150 + 20 * (day % 7)

    def some(values: Any, nulls: float = 0.05) -> list[Any]:
        return [None if random.random() < nulls else value for value in values]

    late = 0.1 if day >= 9 else 0.0
    prices = random.integers(1, 500, rows)
    return {
        "n": [day * 1000 + number for number in range(rows)],
        "k": some(f"{n:03d}" if n % 3 else f"{n}" for n in (random.zipf(1.5, rows) % (30 + 8 * day)).tolist()),
        "i": some((random.zipf(1.7, rows) % (20 + 5 * day)).tolist(), late),
        "u": some([[*some(f"u{n}" for n in random.integers(0, 5 + day, random.integers(0, 4)))] for _ in range(rows)]),
        "h": some(random.integers(-50, 50, rows).tolist()),
        "x": some(random.normal(day - 10, 1 + day, rows).tolist()),
        "p": some((prices / 4 if day >= 19 else prices).tolist(), late),
        "q1": some(random.exponential(2.0, rows).tolist()),
        **({"q2": some(random.normal(1e4, 10.0, rows).tolist())} if day >= 3 else {}),
        "y": random.integers(0, 2, rows).tolist(),
        "z": random.integers(0, 5, rows).tolist(),
    }


def table_of(columns: Columns, day: int) -> pa.Table:
    """As the source stores them: `i` and `p` are int32, int64 from day 9 on, floats from day 19 on."""
    whole = pa.int32() if day < 9 else pa.int64() if day < 19 else pa.float64()
    types = {"i": whole, "p": whole, "u": pa.list_(pa.string())}
    return pa.table({name: pa.array(values, types.get(name)) for name, values in columns.items()})


class Model:
    """What the operators have to do, in plain Python: what a version has learned, by operator and column."""

    def __init__(self) -> None:
        self.learned: dict[Any, Any] = {}

    def night(self, columns: Columns, features: list[dict[str, Any]], day: int, **refit: Any) -> Columns:
        """The columns that these rows become. What the features do not have is forgotten."""
        before = {} if refit.get("all") else self.learned
        ids = {key: one for key, one in self.learned.items() if isinstance(one, Ids)}
        self.learned, out = {}, Columns()
        for feature in features:
            [named] = feature["columns"]
            op = dict(feature["ops"][0]) if feature["ops"] else {"op": ""}
            for name in [one for one in columns if one == named or (named[-1] == "*" and one.startswith(named[:-1]))]:
                key = (op["op"], name, op.get("target"))
                values = columns[name]
                if op["op"] == "Categorify":
                    coded = self.learned[key] = ids.get(key, Ids())
                    if refit.get("all"):
                        coded.counts.clear()
                    coded.threshold, coded.max_size = op.get("freq_threshold", 1), op.get("max_size", 0)
                    forget = int(refit["forget"][:-1]) if "forget" in refit else None
                    out[name] = with_ids(coded, values, day, forget)
                elif op["op"] == "HashBucket":
                    out[name] = [bucket(value, op["num_buckets"]) for value in values]
                elif op["op"] in ("Normalize", "NormalizeMinMax"):
                    known = [*before.get(key, ()), *(value for value in values if value is not None)]
                    self.learned[key] = known
                    middle, width = moments(known) if op["op"] == "Normalize" else (min(known), max(known) - min(known))
                    of = "x_range" if op["op"] == "NormalizeMinMax" else name
                    out[of] = [None if value is None else (value - middle) / width for value in values]
                elif op["op"] in ("TargetEncoding", "JoinGroupby"):
                    target = op.get("target", "x")
                    known = [*before.get(key, ()), *zip(values, columns[target], strict=True)]
                    self.learned[key] = known
                    out |= of_groups(op, name, values, known)
                else:
                    out[name] = values
        return out


def with_ids(ids: Ids, values: list[Any], day: int, forget: int | None) -> list[Any]:
    """The ids of values or of lists of values: 1 for null, a null list stays null."""
    leaves = [leaf for value in values for leaf in (value if isinstance(value, list) else [value]) if leaf is not None]
    found = iter(ids.night(leaves, day, forget))
    if not any(isinstance(value, list) for value in values):
        return [1 if value is None else next(found) for value in values]
    return [None if value is None else [1 if leaf is None else next(found) for leaf in value] for value in values]


def served_ids(values: list[Any], ids: dict[Any, int]) -> list[Any]:
    """As `with_ids`, without learning."""
    if isinstance(next(value for value in values if value is not None), list):
        return [value and [1 if leaf is None else ids.get(leaf, 2) for leaf in value] for value in values]
    return [1 if value is None else ids.get(value, 2) for value in values]


def bucket(value: int | None, buckets: int) -> int:
    return (0xFFFFFFFF if value is None else reference(value.to_bytes(8, "little", signed=True))) % buckets


def moments(values: list[Any]) -> tuple[float, float]:
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def of_groups(op: dict[str, Any], name: str, values: list[Any], known: list[tuple[Any, Any]]) -> Columns:
    groups = defaultdict[Any, list[Any]](list)
    for key, value in known:
        groups[key].append(value)
    if op["op"] == "TargetEncoding":
        smooth, mean = op["p_smooth"], math.fsum(value for _, value in known) / len(known)
        encoded = [(math.fsum(groups[key]) + smooth * mean) / (len(groups[key]) + smooth) for key in values]
        return {f"TE_{name}_{op['target']}": encoded}
    full = {key: [value for value in some if value is not None] for key, some in groups.items()}
    return {
        f"{name}_count": [len(groups[key]) for key in values],
        f"{name}_x_mean": [math.fsum(full[key]) / len(full[key]) if full[key] else None for key in values],
        f"{name}_x_std": [moments(full[key])[1] if len(full[key]) > 1 else None for key in values],
    }


def compare(found: list[Any], wanted: list[Any], what: str) -> None:
    """Ids, counts, nulls and labels are equal; floats to 1e-12 of their value, and of one standard deviation."""
    if any(isinstance(value, float) for value in wanted):
        assert [value is None for value in found] == [value is None for value in wanted], what
        values = [[value for value in one if value is not None] for one in (found, wanted)]
        np.testing.assert_allclose(*values, rtol=1e-12, atol=1e-12, err_msg=what)
    else:
        assert found == wanted, what


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*")) if path.is_file()
    }  # fmt: skip


class Story:
    """An output, what each of its versions has to hold, and the model that learned it."""

    def __init__(self, folder: Path, engine: str) -> None:
        self.folder, self.engine, self.out = folder, engine, folder / "out"
        self.models, self.rows, self.digests = {"none": Model()}, dict[str, Columns](), dict[str, dict[str, str]]()

    def run(self, day: int, features: list[dict[str, Any]], **more: Any) -> None:
        """A run on top of the newest good version, as the flow chooses it."""
        output = {"path": str(self.out), "on_existing": "version", "files": 1, "shuffle": "none"}
        made = make_job({
            "base": str(self.out), "source": {"path": str(self.folder / f"in/{day}.parquet")}, "features": features,
            "label": ["y"], "run": {"report": False, "date": f"2026-10-{day + 1:02d}"}, **more,
            "output": output | more.get("output", {}),
        })  # fmt: skip
        run_stages(made.request(self.engine), plugins=[BasePlugin(made)])

    def night(self, day: int, features: list[dict[str, Any]], on: str, version: str, **more: Any) -> None:
        """A night that has to be learned on top of `on` and published as `version`, with exactly these rows."""
        columns = more.pop("columns", None) or columns_of(day)
        if "source" not in more:
            written(table_of(columns, day), self.folder / f"in/{day}.parquet")
        self.run(day, features, **more)

        assert (self.out / "_latest").read_text() == f"{version}\n"
        assert not (self.folder / ".out.rowmill").exists()
        manifest = json.loads((self.out / version / "_manifest.json").read_text())
        assert (manifest["base"]["version"] if on != "none" else manifest["base"]) == on
        assert manifest["rows"] == {"in": len(columns["n"]), "dropped": 0, "added": 0, "out": len(columns["n"])}
        model = self.models[version] = copy.deepcopy(self.models[on])
        labels = more.get("label", ["y"])
        wanted = model.night(columns, features, day, **more.get("refit", {}))
        self.rows[version] = wanted | {label: columns[label] for label in labels}
        self.check(version, self.out / version)
        self.digests[version] = digests(self.out / version)

    def check(self, version: str, folder: Path) -> None:
        """That a folder has the rows of a version, whatever their order."""
        found, wanted = rows_of(folder).sort_by("n"), self.rows[version]
        assert sorted(found.column_names) == sorted(wanted)
        for name, values in wanted.items():
            compare(found[name].to_pylist(), values, f"{version}: {name}")

    def check_versions(self, *alive: int) -> None:
        """That these versions are there and no others, with the bytes that were published; v0017 is damaged."""
        assert [path.name for path in sorted(self.out.glob("v*"))] == [f"v{number:04d}" for number in alive]
        for version in (f"v{number:04d}" for number in alive if number != 17):
            found = digests(self.out / version)
            found.pop("_discarded.json", "")
            assert found == self.digests[version], version

    @contextmanager
    def unchanged(self, error: type[Exception], words: str) -> Iterator[None]:
        """What is refused, with these words, and changes no byte of the output."""
        before = digests(self.out)
        with pytest.raises(error, match=f"(?s){words}"):
            yield
        assert digests(self.out) == before

    def replace(self, version: str, day: int) -> None:
        """Apply a version to the rows of its night, in the place of what another output holds."""
        run_stages(make_application({
            "fitted": str(self.out / version), "source": {"path": str(self.folder / f"in/{day}.parquet")},
            "output": {"path": str(self.folder / "today"), "on_existing": "replace", "files": 3},
            "run": {"report": False},
        }).request(self.engine))  # fmt: skip
        self.check(version, self.folder / "today")


def code(threshold: int = 1, max_size: int = 0) -> dict[str, Any]:
    return entry("k", {"op": "Categorify", "freq_threshold": threshold, "max_size": max_size})


def scaled(name: str) -> dict[str, Any]:
    return entry(name, {"op": "Normalize", "dtype": "float64"})


def encoded(target: str, smooth: float = 0.0) -> dict[str, Any]:
    how = {"kfold": 1, "p_smooth": smooth, "dtype": "float64"}
    return entry("k", {"op": "TargetEncoding", "target": target, **how})


NUMBER, ITEM, LISTED = entry("n"), entry("i", {"op": "Categorify"}), entry("u", {"op": "Categorify"})
HASHED = entry("h", {"op": "HashBucket", "num_buckets": 16})
GROUPS = entry("k", {"op": "JoinGroupby", "cont_cols": ["x"], "stats": ["count", "mean", "std"]})
RANGE = entry("x", {"op": "NormalizeMinMax", "dtype": "float64"}, {"op": "Rename", "name": "x_range"})
FIRST = [NUMBER, ITEM, HASHED, scaled("x"), scaled("p"), scaled("q*")]
CONTRACT = {"columns": {"k": {"nulls": 0.2, "type": "string"}, "y": {"values": [0, 1]}, "p": {"range": [0, 500]}}}


def gate(out: Path, version: str, contract: dict[str, Any]) -> str:
    """The verdict on a version beside those before it."""
    profile = read_profile(out / version)
    assert profile is not None
    past, _ = read_good_versions(out, without=[version])
    return judge(profile, past, make_contract(contract), Checks(on_finding="stop")).verdict


def written_as_text(columns: Columns, path: Path) -> None:
    """The columns that CSV can hold; null is the empty text."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names := [name for name in columns if name != "u"])
        writer.writerows(zip(*([v if v is not None else "" for v in columns[name]] for name in names), strict=True))


def pairs(frame: Any) -> list[tuple[int, int]]:
    """The number and the id of each row of a frame, or of a batch."""
    return list(zip(*(pa.array(frame[name]).to_pylist() for name in ("n", "k")), strict=True))


class Readers:
    """Threads that read the newest version, and an output that is replaced, over and over: each reading has the rows of
    one version, all of them, or ends with an error that says what happened."""

    def __init__(self, story: Story) -> None:
        self.story, self.done = story, threading.Event()
        self.read_rows, self.errors = list[Any](), list[BaseException]()
        today = story.folder / "today"
        reads: list[Callable[[], Any]] = [
            lambda: Dataset(story.out, engine="pandas").to_iter(),
            lambda: Dataset(today, engine="pandas").to_iter(),
            lambda: loader(today, batch_size=40),
        ]
        self.threads = [threading.Thread(target=self.read, args=(one,)) for one in reads]

    def read(self, frames: Callable[[], Any]) -> None:
        is_last = False
        while not is_last:
            is_last = self.done.wait(0.2)
            try:
                rows = [pair for frame in frames() for pair in pairs(frame)]
            except BaseException as error:
                self.errors.append(error)
            else:
                self.read_rows.append(sorted(rows))

    def __enter__(self) -> Readers:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.done.set()
        for thread in self.threads:
            thread.join()

    @property
    def versions(self) -> set[str]:
        """The versions that were read, each time all of its rows and no others."""
        known = {name: sorted(zip(rows["n"], rows["k"], strict=True)) for name, rows in self.story.rows.items()}
        return {next((name for name, of in known.items() if of == rows), "a mix") for rows in self.read_rows}


@pytest.fixture
def story(tmp_path: Path, engine: str) -> Story:
    return Story(tmp_path, engine)


@pytest.mark.promise(
    "dropped and came back counts as missing in the versions before it came back: the same id means another value there"
)
def test_thirty_nights(story: Story, caplog: pytest.LogCaptureFixture) -> None:
    out, night = story.out, story.night

    # The job grows; what would move ids is refused.
    night(0, [*FIRST, code(2, 40)], "none", "v0001")
    night(1, [*FIRST, code(2, 40)], "v0001", "v0002")
    more = [LISTED, GROUPS, encoded("y"), *FIRST]
    night(2, [*more, code(2, 40)], "v0002", "v0003")
    night(3, [RANGE, *more, code(2, 40)], "v0003", "v0004")
    job = [RANGE, *more, code(3, 60)]
    night(4, job, "v0004", "v0005")
    night(5, job, "v0005", "v0006", contract=CONTRACT, checks={"on_finding": "stop"})
    assert gate(out, "v0006", CONTRACT) == "pass"
    assert gate(out, "v0006", {"columns": {"y": {"values": [0]}}}) == "stop"

    other = [{**HASHED, "ops": [{"op": "HashBucket", "num_buckets": 32}]} if one == HASHED else one for one in job]
    buckets = [*job[:-1], entry("k", {"op": "Categorify", "num_buckets": 4})]
    small = [*job[:-1], code(3, 9)]
    for refused, words in ((other, "the ids of 'h' would move"), (buckets, "the ids of 'k' would move"),
                           (small, "max_size 9 is less than")):  # fmt: skip
        with story.unchanged(JobError, words):
            night(6, refused, "", "")
    night(6, job, "v0006", "v0007")
    night(7, job, "v0007", "v0008", output={"shuffle": "full", "files": 3})

    # A feature goes, whole numbers become wider and get nulls, and are read in the types of the base.
    job.remove(LISTED)
    night(8, job, "v0008", "v0009")
    wide = columns_of(9)
    wide["i"][0] = 2**40
    with story.unchanged(DataError, "1099511627776"):
        night(9, job, "", "", columns=wide)
    night(9, job, "v0009", "v0010")

    # A night is taken back; the next one is CSV; the day that was missing comes late, and has no id of the bad night.
    bad = columns_of(10)
    bad["k"] = [f"bad{number % 9}" for number in bad["n"]]
    night(10, job, "v0010", "v0011", columns=bad)
    with pytest.raises(JobError, match="v0011 was learned on top of v0010"):
        discard_version(out / "v0010")
    assert discard_version(out / "v0011")[-1] == "_latest is v0010 now"

    texts = columns_of(11)
    texts["k"][:4] = ["007", "7", "07", "7.0"]
    written_as_text(texts, story.folder / "in/11.csv")
    night(11, job, "v0010", "v0012", columns=texts, source={"path": str(story.folder / "in/11.csv")})
    late = columns_of(10)
    late["k"][:4] = ["bad3"] * 4
    night(10, job, "v0012", "v0013", columns=late)

    # The same night again, and another label.
    night(12, job, "v0013", "v0014")
    with story.unchanged(DataError, r"12\.parquet was learned in the night of 2026-10-13: this night is v0014"):
        night(12, job, "", "")
    night(12, job, "v0014", "v0015", refit={"again": True})

    job[job.index(encoded("y"))] = encoded("z", 5.0)
    night = partial(story.night, label=["z"])
    night(13, job, "v0015", "v0016")
    night(14, job, "v0016", "v0017")

    # The newest version is damaged; a feature comes back, and is learned from these rows alone.
    part = out / "v0017/part-00000.parquet"
    whole = part.read_bytes()
    part.write_bytes(whole[:-100])
    with story.unchanged(DataError, "the newest version is damaged.*v0017.*its night, 2026-10-15"):
        night(15, job, "", "", checks={"on_finding": "stop"})
    job.insert(0, LISTED)
    caplog.clear()
    night(15, job, "v0016", "v0018")
    assert is_discarded(out / "v0017")
    assert "not the base, since it is damaged: v0017: part-00000.parquet has" in caplog.text
    assert "its night is to be run again: 2026-10-15" in caplog.text
    night(14, job, "v0018", "v0019")

    # `_latest` is damaged; versions and the base are links; a damaged version is restored.
    (out / "_latest").write_bytes(b"v0019\xff\xfe\x00")
    for read in (loader, Workflow.load):
        with pytest.raises(DataError, match="_latest is damaged"):
            read(out)
    night(16, job, "v0019", "v0020")

    (story.folder / "link").symlink_to(out)
    (story.folder / "disk").mkdir()
    (out / "v0005").rename(story.folder / "disk/v0005")
    (out / "v0005").symlink_to(story.folder / "disk/v0005")
    night(17, job, "v0020", "v0021", base=str(story.folder / "link"))
    job[-1] = code(1, 0)
    night(18, job, "v0021", "v0022", base=str(story.folder / "link"), output={"path": str(story.folder / "link")})
    state = out / "v0022/_workflow/state.json"
    learned = state.read_bytes()
    state.write_bytes(learned[: len(learned) // 2])
    night(19, job, "v0021", "v0023")
    assert is_discarded(out / "v0022")
    night(18, job, "v0023", "v0024")
    state.write_bytes(learned)
    assert (
        "v0024 was learned without it: readers of several versions leave it out" in restore_version(out / "v0022")[-1]
    )

    night(20, job, "v0024", "v0025")
    story.check_versions(*range(1, 26))

    # Retention leaves what a reader holds, a link, and what is damaged.
    held = loader(out, versions="v0016", batch_size=50, shuffle=False).batches()
    seen = next(held).to_pylist()
    night(21, job, "v0025", "v0026", output={"keep_versions": 5})
    story.check_versions(5, 16, 17, 22, 23, 24, 25, 26)
    gone = [1, 2, 3, 4, 6, 7, 8, 9, 10, 12, 13, 14, 15, 18, 19, 20, 21]
    assert [one.version for one in read_removed_versions(out)] == [f"v{number:04d}" for number in gone]
    seen += [row for batch in held for row in batch.to_pylist()]
    del held
    for name, values in story.rows["v0016"].items():
        compare([row[name] for row in seen], values, f"a reader of v0016: {name}")
    night(22, job, "v0026", "v0027", refit={"all": True}, output={"keep_versions": 6})

    # Readers of the output, and of another one that is replaced under them.
    job[-1] = code(4, 0)
    story.replace("v0027", 22)
    epoch = loader(story.folder / "today", batch_size=20).batches()
    seen, planned = pairs(next(epoch)), Dataset(story.folder / "today", engine="pandas")
    assert planned.num_rows == len(story.rows["v0027"]["n"])
    with Readers(story) as readers:
        night(23, job, "v0027", "v0028")
        story.replace("v0028", 23)
        replaced = sorted(zip(story.rows["v0027"]["n"], story.rows["v0027"]["k"], strict=True))
        assert sorted(seen + [pair for batch in epoch for pair in pairs(batch)]) == replaced
        with pytest.raises(DataError, match="a source file changed during the run"):
            list(planned.to_iter())
        night(24, job, "v0028", "v0029", refit={"forget": "1d"})
        story.replace("v0029", 24)
        without = {name: values for name, values in columns_of(25).items() if name != "q2"}
        with story.unchanged(DataError, "the source has no column 'q2'"):
            night(25, job, "", "", columns=without)
        job[job.index(scaled("q*"))] = scaled("q1")
        night(25, job, "v0029", "v0030", columns=without)
        story.replace("v0030", 25)
    assert readers.versions <= {"v0027", "v0028", "v0029", "v0030"}
    assert "v0030" in readers.versions
    changed = ("a source file changed during the run", "the output that is read is gone")
    assert {getattr(error, "what", repr(error)) for error in readers.errors} <= {*changed}

    # Other places of features, the first label again, a hashed column goes and a column of the source comes back.
    night(26, job[3::-1] + job[:3:-1], "v0030", "v0031", output={"shuffle": "full", "files": 2})
    night = story.night
    job[job.index(encoded("z", 5.0))] = encoded("y")
    night(27, job, "v0031", "v0032")
    job[job.index(HASHED)] = scaled("q*")
    job.remove(scaled("q1"))
    night(28, job, "v0032", "v0033")
    night(29, job, "v0033", "v0034", contract=CONTRACT, checks={"on_finding": "stop"})
    assert gate(out, "v0034", CONTRACT) == "pass"

    # All that is left, read together and by the newest workflow.
    alive = [5, 17, *range(22, 35)]
    story.check_versions(*alive)
    caplog.clear()
    read = loader(out, versions="all", shuffle=False)
    assert sorted(read.names) == ["i", "k", "k_count", "k_x_mean", "k_x_std", "n", "p", "q1", "x", "x_range"]
    assert "v0022 has other ids than v0034" in caplog.text
    together = [one for one in alive if one not in (17, 22)]
    rows = {name: [value for batch in read for value in batch[name].to_pylist()] for name in ("n", "i", "k")}
    by_row = sorted(zip(rows["n"], rows["i"], rows["k"], strict=True))
    of_all = [story.rows[f"v{number:04d}"] for number in together]
    assert by_row == sorted(row for of in of_all for row in zip(of["n"], of["i"], of["k"], strict=True))

    newest, model = Workflow.load(out), story.models["v0034"]
    for key, step in newest.state.values.items():
        _, op, name = key.split("/")
        if op == "Normalize":
            assert (step["mean"], step["std"]) == pytest.approx(moments(model.learned[op, name, None]), rel=1e-12)
    for day in range(30):
        columns = columns_of(day)
        missing = {"q2": [0.0] * len(columns["n"])} if day < 3 else {}
        served = newest.transform(table_of(columns | missing, day))
        for name in ("i", "k", "u"):
            ids = model.learned["Categorify", name, None].ids
            compare(served[name].to_pylist(), served_ids(columns[name], ids), f"day {day}: {name}")
