"""Profiles of tables by plain numpy, and nights of a made-up shop that drift: nothing of it is code under test."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.contract import Contract, make_contract
from tasks.core.dtypes import dtype_name
from tasks.core.schema import ROW
from tasks.core.settings import Checks
from tasks.gate.decide import judge
from tasks.gate.earlier_outputs import Past
from tasks.gate.verdict import Verdict
from tasks.graph.row_sample import ROWS
from tasks.profile.associations import associations
from tasks.profile.output_profile import ColumnProfile, Profile, StepProfile

FIRST = date(2026, 9, 7)  # a Monday
UNREAD = ("note", "remark")  # columns of a source that a job does not read
COUNTED = 100_000  # distinct values of which each is counted


def profile_of(table: pa.Table, steps: Iterable[StepProfile] = ()) -> Profile:
    columns = {name: column_profile(name, table.column(name)) for name in table.column_names}
    profile = Profile(table.num_rows, columns, {step.key: step for step in steps})
    hashes = pd.util.hash_pandas_object(table.to_pandas(), index=False)
    coded = {
        name: coded_texts(table[name]) if pa.types.is_string(table[name].type) else table[name] for name in columns
    }
    numbers = pa.array(np.arange(table.num_rows, dtype=np.uint64))
    pairs, associated = associations(pa.table({ROW: numbers, **coded}).slice(0, ROWS))  # by the code under test
    repeated = float(hashes.duplicated().mean()) if len(hashes) else None
    rows = {"compared": table.num_rows, "associated": associated}
    return replace(profile, repeated=repeated, associations=pairs, **rows)


def coded_texts(column: pa.ChunkedArray) -> pa.Array:
    texts = column.combine_chunks().dictionary_encode()
    return pa.array(hashed(texts.dictionary), pa.uint16()).take(texts.indices)


def hashed(values: pa.Array) -> np.ndarray:
    """Ten bits of a hash of each text or whole number."""
    if pa.types.is_string(values.type):
        return np.array([zlib.crc32(text.encode()) & 1023 for text in values.to_pylist()], np.int64)
    numbers = values.cast(pa.int64(), safe=False).to_numpy(zero_copy_only=False).view(np.uint64)
    return (numbers * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(54)).astype(np.int64)


def most_frequent(values: pa.Array, counts: np.ndarray) -> list[tuple[Any, int]]:
    """The 100 values with the largest counts and their counts; of equal counts the least values."""
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    ordered = pa.table({"value": values, "count": counts}).sort_by([("count", "descending"), ("value", "ascending")])
    return [(row["value"], row["count"]) for row in ordered.slice(0, 100).to_pylist()]


def column_profile(name: str, column: pa.ChunkedArray) -> ColumnProfile:
    values, kind = column.drop_null(), column.type
    rows, nulls = len(column), column.null_count
    data: dict[str, Any] = {"name": name, "type": dtype_name(kind), "rows": rows, "nulls": nulls}
    if not len(values):
        return ColumnProfile(**data)
    counted = values.value_counts()
    counts = counted.field("counts").to_numpy()
    data |= {"distinct": float(len(counted)), "distinct_error": 0.0}
    low, high = pc.min_max(values).values()
    moment = pa.types.is_timestamp(kind)
    data |= {"minimum": low.as_py().isoformat() if moment else low.as_py(),
             "maximum": high.as_py().isoformat() if moment else high.as_py()}  # fmt: skip
    if not pa.types.is_string(kind):
        numbers = values.cast(pa.int64() if moment else pa.float64(), safe=False).to_numpy().astype(np.float64)
        data |= {"mean": float(numbers.mean()), "std": float(numbers.std(ddof=1)) if len(numbers) > 1 else 0.0}
        if moment:
            data["hours"] = np.bincount((numbers // 3.6e9 % 24).astype(int), minlength=24).tolist()
        bits = (numbers + 0.0).view(np.uint64)
        ordered = np.where(bits >> 63, ~bits, bits | np.uint64(1 << 63)) >> 48
        found_bins, numbers_in = np.unique(ordered, return_counts=True)
        data["bins"] = {int(b): int(n) for b, n in zip(found_bins, numbers_in, strict=True)}
    if pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        each = counted.field("values")
        data["buckets"] = np.bincount(hashed(each), counts, 1024).astype(int).tolist()
        if len(each) <= COUNTED:
            data |= {"top": most_frequent(each, counts), "top_exact": True}
    return ColumnProfile(**data)


class Shop:
    """Nights of a shop of about `rows` rows: rows grow by 1 % a day and fall at weekends, ids are counted up, shares
    and prices wander, brands come and go, visitors leave several rows each."""

    def __init__(self, seed: int, rows: int = 20_000, nights: int = 100) -> None:
        self.seed, self.rows = seed, rows
        rng = np.random.default_rng(seed)

        def walk(size: float, start: float = 0.0) -> np.ndarray:
            return start + np.cumsum(rng.normal(0, size, nights))

        self.carts, self.nulls, self.prices = walk(0.03, -3.0), walk(0.03, -1.8), walk(0.004, 4.0)
        self.volume = rng.normal(0, 0.03, nights)
        self.popular = rng.normal(0, 1.2, 3000)
        self.hot = rng.normal(0, 0.02, (nights, 3000)).cumsum(axis=0)
        self.brands = np.array([f"brand{number}" for number in np.minimum(rng.zipf(1.5, 3000), 180)], object)
        self.base_price = np.exp(rng.normal(0, 1.0, 3000))
        self.started = rng.integers(-200, nights, 3000)  # the night on which a product comes

    def day(self, night: int) -> date:
        return FIRST + timedelta(days=night)

    def table(self, night: int, of_rows: int | None = None) -> pa.Table:
        rng = np.random.default_rng([self.seed, night])
        weekend = self.day(night).weekday() >= 5
        rows = of_rows or int(self.rows * 1.01**night * (0.7 if weekend else 1.0) * np.exp(self.volume[night]))
        visits = rng.geometric(0.25, rows)
        of_visit = np.repeat(np.arange(rows), visits)[:rows]
        users = 50_000 + 400 * night
        user = (users * rng.random(rows) ** 2).astype(np.int64)[of_visit]
        weight = np.where(self.started <= night, np.exp(self.popular + self.hot[night]), 0.0)
        product = rng.choice(3000, rows, p=weight / weight.sum())
        share = 1 / (1 + np.exp(-self.carts[night] - (0.2 if weekend else 0.0)))
        draw = rng.random(rows)
        event = np.where(draw < share, np.where(draw < share * 0.4, "purchase", "cart"), "view")
        country = np.array(["US", "DE", "FR", "GB", "JP", "BR", "IN"])
        mix = np.array([40, 20, 12, 10, 8, 6, 4.0]) * (1 + 0.1 * np.arange(7) * weekend)
        home = rng.choice(7, rows, p=mix / mix.sum())[of_visit]
        no_brand = rng.random(rows) < 1 / (1 + np.exp(-self.nulls[night]))
        price = np.round(self.base_price[product] * np.exp(self.prices[night]) * rng.uniform(0.95, 1.05, rows), 2)
        hours = np.clip(rng.normal(14, 5, rows) % 24, 0, 23.9999)
        begin = int(datetime.combine(self.day(night), datetime.min.time(), UTC).timestamp() * 1e6)
        moment = begin + np.sort(hours * 3.6e9).astype(np.int64)
        first_order = sum(int(self.rows * 1.01**n) for n in range(night)) + 1_000_000
        return pa.table({
            "event_time": pa.array(moment, pa.timestamp("us")),
            "event_type": pa.array(event),
            "product_id": pa.array(product * 7919 + 1_000_003),
            "brand": pa.array(self.brands[product], mask=no_brand),
            "price": pa.array(price),
            "user_id": pa.array(user * 31 + 500_000_000),
            "country": pa.array(country[home]),
            "order_id": pa.array(np.arange(first_order, first_order + rows)),
            "quantity": pa.array(rng.poisson(0.4, rows) + 1),
            "score": pa.array(rng.normal(0, 1, rows).astype(np.float32)),
            "margin": pa.array(rng.gamma(2.0, 3.0, rows)),
            "seconds": pa.array(moment // 1_000_000),
        })  # fmt: skip

    def steps(self, night: int, table: pa.Table, known: int | None = None) -> list[StepProfile]:
        """What Categorify of user_id would say: users above those of the fit, or those that a fault made strange."""
        users = table.column("user_id").to_numpy()
        limit = 500_000_000 + 31 * (50_000 + 400 * (night - 1) if known is None else known)
        strange = int(((users >= limit) | (users < 500_000_000)).sum())
        return [StepProfile("2:user_id", "Categorify", ("user_id",), table.num_rows, out_of_vocabulary=strange)]

    def all_steps(self, night: int, table: pa.Table) -> list[StepProfile]:
        """What the steps of a job would say whose columns are there: Categorify of users, a join with a list of the
        products that is three nights old, and a cast of the numbers of brands."""
        types = {field.name: field.type for field in table.schema}
        found = self.steps(night, table) if types["user_id"] == pa.int64() else []
        if types["product_id"] == pa.int64():
            number, rest = np.divmod(table.column("product_id").to_numpy() - 1_000_003, 7919)
            listed = (rest == 0) & (number >= 0) & (number < 3000)
            listed &= self.started[np.clip(number, 0, 2999)] <= night - 3
            unmatched = int((~listed).sum())
            found.append(StepProfile("3:product_id", "JoinExternal", ("product_id",), len(table), unmatched=unmatched))
        if pa.types.is_string(types["brand"]):
            failed = pc.sum(pc.invert(pc.match_substring_regex(table["brand"], "^brand[0-9]+$"))).as_py() or 0
            found.append(StepProfile("4:brand", "Lambda", ("brand",), len(table), failed_casts=failed))
        return found

    def profile(self, night: int, fault: Callable[[pa.Table], pa.Table] | None = None) -> Profile:
        table = self.table(night) if fault is None else fault(self.table(night))
        has_user = "user_id" in table.column_names and pa.types.is_integer(table.schema.field("user_id").type)
        return profile_of(table, self.steps(night, table) if has_user else ())

    def past(self, night: int, profile: Profile | None = None) -> Past:
        return Past(f"v{night + 1:04d}", self.day(night), profile or self.profile(night))


class LabelledShop(Shop):
    """A shop in which 1.5 % of the rows are from Ireland, whether something is bought depends on the brand alone, and
    two columns are not read by the job (`UNREAD`)."""

    def table(self, night: int, of_rows: int | None = None) -> pa.Table:
        table = super().table(night, of_rows)
        rng = np.random.default_rng([self.seed, night, 1])
        brand = table["brand"].to_pandas().fillna("").to_numpy(object)
        names, places = np.unique(brand.astype(str), return_inverse=True)
        effects = [np.random.default_rng([self.seed, *name.encode()]).normal(0, 0.4) for name in names]
        bought = rng.random(len(table)) < 1 / (1 + np.exp(2 - np.array(effects)[places]))
        country = np.where(rng.random(len(table)) < 0.015, "IE", table["country"].to_numpy(zero_copy_only=False))
        table = table.set_column(table.column_names.index("country"), "country", pa.array(country))
        table = table.append_column("bought", pa.array(bought.astype(np.int8)))
        return table.append_column(UNREAD[0], pa.array(rng.integers(0, 9, len(table)).astype(str)))


class RowsShop(NamedTuple):
    """How the rows of a shop change: by weekday (Monday first), by night, and at random."""

    weekdays: tuple[float, ...] = (1.0,) * 7
    growth: float = 0.0
    noise: float = 0.05
    late: int | None = None  # a night that comes two nights late
    starts: int = 0  # the weekday of the first night

    def rows(self, seed: int, nights: int) -> list[int]:
        random = np.random.default_rng([seed, int(100 * sum(self.weekdays))]).normal(0, self.noise, nights)
        days = [self.weekdays[self.day(night).weekday()] for night in range(nights)]
        return [int(20_000 * days[n] * (1 + self.growth) ** n * np.exp(random[n])) for n in range(nights)]

    def day(self, night: int) -> date:
        return FIRST + timedelta(days=night + self.starts)

    def known(self, night: int) -> list[int]:
        """The nights that are there when a night is judged, newest version first."""
        nights = list(range(night))
        if self.late is not None and self.late in nights:
            nights.remove(self.late)
            if night > self.late + 2:
                nights.insert(self.late + 2, self.late)
        return nights[::-1]


SHOPS_OF_ROWS = {
    "a weekly pattern": RowsShop((1.1, 1.0, 0.95, 1.0, 1.2, 0.8, 0.7)),
    "growth and a late night": RowsShop((1.0, 1.0, 1.0, 1.0, 1.0, 0.8, 0.8), growth=0.015, late=16),
    "half at weekends": RowsShop((1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5)),
}
FAULTS_OF_ROWS = {"half of the rows": 0.5, "twice the rows": 2.0, "10 % of the rows": 0.1, "90 % of the rows": 0.9}


def judged_rows(shop: RowsShop, rows: list[int], night: int, tonight: int | None = None) -> Verdict:
    past = [Past(f"v{n + 1:04d}", shop.day(n), Profile(rows[n])) for n in shop.known(night)]
    stop = Checks(on_finding="stop")
    return judge(Profile(rows[night] if tonight is None else tonight), past, None, stop, shop.day(night))


def clean_alarms(shop: RowsShop, seed: int, nights: int, whole: Shop | None = None) -> list[tuple[int, str]]:
    """(night, sentence) of each finding of clean nights; with `whole` profiles, all checks count."""
    rows, alarms = shop.rows(seed, nights), []
    clean = Nights(whole, shop, [whole.table(night, count // 4) for night, count in enumerate(rows)]) if whole else None
    for night in range(nights):
        findings = clean.verdict(night).findings if clean else judged_rows(shop, rows, night).findings
        alarms += [(night, finding.text) for finding in findings]
    return alarms


def found_by_week(shop: RowsShop, fault: str, seeds: Iterable[int], weeks: int = 4) -> dict[int, float]:
    """The share of nights in which a fault is found, by week; the first night has nothing to be compared with."""
    found: dict[int, list[bool]] = {week: [] for week in range(1, weeks + 1)}
    for seed in seeds:
        rows = shop.rows(seed, 7 * weeks)
        for night in range(1, 7 * weeks):
            verdict = judged_rows(shop, rows, night, int(rows[night] * FAULTS_OF_ROWS[fault]))
            found[night // 7 + 1].append("rows" in {finding.check for finding in verdict.findings})
    return {week: sum(hits) / len(hits) for week, hits in found.items()}


class Fault(NamedTuple):
    """A fault of one night: the columns that it is in ('' for rows), the change of the table, and a contract."""

    columns: str
    plant: Callable[[pa.Table], pa.Table]
    contract: Contract | None = None


def in_a_share(name: str, share: float, make: Callable[[np.ndarray], Any], rule: dict[str, Any] | None = None) -> Fault:
    """A fault in the values of a share of the rows, drawn at random; NaN and None are null."""

    def plant(table: pa.Table) -> pa.Table:
        values = table.column(name).to_numpy(zero_copy_only=False)
        there = np.random.default_rng(7).random(len(table)) < share
        values = np.where(there, make(values), values)
        return table.set_column(table.column_names.index(name), name, pa.array(values, from_pandas=True))

    return Fault(name, plant, make_contract({"columns": {name: rule}}) if rule else None)


def each(change: Callable[[str], str | None]) -> Callable[[np.ndarray], np.ndarray]:
    """A change of each text that is not null."""
    return lambda values: np.array([value and change(value) for value in values], object)


def first(name: str, value: Any, rule: dict[str, Any] | None = None) -> Fault:
    """One other value, in the first row."""
    return in_a_share(name, 1.0, lambda values: np.where(np.arange(len(values)) == 0, value, values), rule)


def cast(name: str, kind: pa.DataType) -> Fault:
    return Fault(name, lambda table: table.set_column(
        table.column_names.index(name), name, table[name].cast(kind, safe=False)))  # fmt: skip


def shifted_columns(table: pa.Table) -> pa.Table:
    """A value too many at the beginning of the lines: each text stands in the column to the right."""
    moved = {"brand": table["event_type"], "country": table["brand"], "event_type": table["country"]}
    return pa.table({name: moved.get(name, table[name]) for name in table.column_names})


def half_swapped(table: pa.Table) -> pa.Table:
    there = np.arange(len(table)) % 2 == 0
    price, margin = (table.column(name).to_numpy() for name in ("price", "margin"))
    crossed = {"price": np.where(there, margin, price), "margin": np.where(there, price, margin)}
    return pa.table({name: crossed.get(name, table[name]) for name in table.column_names})


def shuffled(values: np.ndarray) -> np.ndarray:
    return np.random.default_rng(4).permutation(values)


def without_hours(table: pa.Table, first: int, stop: int) -> pa.Table:
    hours = pc.hour(table["event_time"])
    return table.filter(pc.or_(pc.less(hours, first), pc.greater_equal(hours, stop)))


AGAIN = "the rows of the night before"
DAY = np.timedelta64(24 * 3600 * 10**6, "us")
FURTHER = {  # faults on which no check was developed, and which no other test plants
    "empty texts in a twentieth": in_a_share("country", 0.05, lambda _: ""),
    "null as a word in 3 %": in_a_share("country", 0.03, lambda _: "NULL"),
    "nulls in a tenth": in_a_share("country", 0.1, lambda _: None),
    "a column all null": in_a_share("margin", 1.0, lambda _: np.nan),
    "0 as the default of a twentieth": in_a_share("price", 0.05, lambda _: 0.0),
    "-1 as the default of 1 %": in_a_share("quantity", 0.01, lambda _: -1),
    "1970 as the default of 1 %": in_a_share("event_time", 0.01, lambda _: np.datetime64(0, "us")),
    "times a year ahead in 1 %": in_a_share("event_time", 0.01, lambda times: times + 365 * DAY),
    "times of the day before": in_a_share("event_time", 1.0, lambda times: times - DAY),
    "a clock that stands still": in_a_share("event_time", 1.0, lambda times: times[0]),
    "euros in place of cents": in_a_share("price", 1.0, lambda prices: prices / 100),
    "cents in a tenth": in_a_share("price", 0.1, lambda prices: prices * 100),
    "prices without their tax": in_a_share("price", 1.0, lambda prices: prices / 1.19),
    "prices 3 % too high": in_a_share("price", 1.0, lambda prices: prices * 1.03),
    "another unit in 1 %": in_a_share("margin", 0.01, lambda margins: margins * 1000),
    "another sign in a tenth": in_a_share("margin", 0.1, lambda margins: -margins),
    "decimals cut off": in_a_share("margin", 1.0, np.floor),
    "one decimal left": in_a_share("score", 1.0, lambda scores: np.round(scores, 1)),
    "values cut at a limit": in_a_share("margin", 1.0, lambda margins: np.minimum(margins, 10)),
    "one huge value": first("price", 1e9),
    "a mean a fifth of a deviation away": in_a_share("score", 1.0, lambda scores: scores + np.float32(0.2)),
    "a column one row out of step": in_a_share("price", 1.0, lambda prices: np.roll(prices, 1)),
    "a key shuffled": in_a_share("product_id", 1.0, shuffled),
    "a tenth delivered again": Fault("", lambda table: pa.concat_tables([table, table.slice(0, len(table) // 10)])),
    "two hours at noon missing": Fault("event_time", lambda table: without_hours(table, 12, 14)),
    "columns shifted by one": Fault("brand, country, event_type", shifted_columns),
    "columns swapped in half of the rows": Fault("price, margin", half_swapped),
    "upper case": in_a_share("event_type", 1.0, each(str.upper)),
    "lower case in 2 %": in_a_share("country", 0.02, each(str.lower)),
    "texts cut to a letter": in_a_share("country", 1.0, each(lambda text: text[:1])),
    "damaged letters in 3 %": in_a_share("brand", 0.03, each(lambda text: text.replace("a", "\u00c3\u00a4"))),
    "two categories exchanged": in_a_share("country", 1.0, each(lambda text: {"US": "DE", "DE": "US"}.get(text, text))),
    "another spelling of half a category": in_a_share("country", 0.5, each(lambda text: text.replace("US", "USA"))),
    "a new kind of event in 1 %": in_a_share("event_type", 0.01, lambda _: "refund"),
    "a country lost": Fault("country", lambda table: table.filter(pc.not_equal(table["country"], "IN"))),
    "ids of another range": in_a_share("user_id", 1.0, lambda ids: ids + 2**40),
    "ids of another shop in a tenth": in_a_share("product_id", 0.1, lambda ids: ids + 10**9),
    "ids drawn evenly": in_a_share(
        "product_id", 1.0, lambda ids: np.random.default_rng(8).choice(np.unique(ids), len(ids))
    ),
    "one product in a tenth": in_a_share("product_id", 0.1, lambda ids: ids[0]),
    "a counter that begins anew": in_a_share("order_id", 1.0, lambda ids: ids - ids.min() + 1),
    "ids without a match in a twentieth": in_a_share("product_id", 0.05, lambda ids: ids + 1),
    "ids out of the vocabulary in a twentieth": in_a_share("user_id", 0.05, lambda ids: ids + 31 * 10**7),
    "casts that fail in 2 %": in_a_share("brand", 0.02, each(lambda text: text + "?")),
    "ids as texts": cast("product_id", pa.string()),
    "whole numbers as decimals": cast("quantity", pa.float64()),
    "decimals as whole numbers": cast("price", pa.int64()),
    "a column missing": Fault("margin", lambda table: table.drop_columns(["margin"])),
    "a column added": Fault("extra", lambda table: table.append_column("extra", table["score"])),
    "a column renamed": Fault("price, Price", lambda table: table.rename_columns({"price": "Price"})),
    "the last hour missing": Fault("event_time", lambda table: table.filter(pc.less(pc.hour(table["event_time"]), 23))),
    "half of the users lost": Fault(
        "", lambda table: table.filter(pa.array(table.column("user_id").to_numpy() // 31 % 2 == 0))
    ),
    "a row 500 times": Fault("", lambda table: pa.concat_tables([table, table.take([0] * 500)])),
    "contract: a price below 0": first("price", -0.01, {"range": [0, 100_000]}),
    "contract: a country beyond the domain": first(
        "country", "XX", {"values": ["US", "DE", "FR", "GB", "JP", "BR", "IN"]}
    ),
    "contract: nulls above 1 %": in_a_share("score", 0.02, lambda _: np.nan, {"nulls": 0.01}),
    "contract: a time before 2020": first("event_time", np.datetime64(0, "us"), {"range": ["2020-01-01", None]}),
}

OF_LABELLED = {  # faults of a `LabelledShop` alone
    "a label shuffled": in_a_share("bought", 1.0, shuffled),
    "a country of 1.5 % lost": Fault("country", lambda table: table.filter(pc.not_equal(table["country"], "IE"))),
    "an unread column added": Fault(UNREAD[1], lambda table: table.append_column(UNREAD[1], table["score"])),
    "an unread column missing": Fault(UNREAD[0], lambda table: table.drop_columns([UNREAD[0]])),
}


class Found(NamedTuple):
    """What a fault of a night makes of it (stop, warning, or not found), and whether a finding names a column of it."""

    level: str
    is_named: bool


class Nights:
    """Clean nights of a shop, in one of which a fault is planted: those before it are its history."""

    def __init__(self, whole: Shop, shop: RowsShop, tables: list[pa.Table]) -> None:
        self.whole, self.shop, self.tables = whole, shop, tables
        profiles = [self.profile(night, table) for night, table in enumerate(tables)]
        self.past = [Past(f"v{n + 1:04d}", shop.day(n), profile) for n, profile in enumerate(profiles)]

    def profile(self, night: int, table: pa.Table) -> Profile:
        """The profile of a job that reads all columns but those of `UNREAD`."""
        read = table.select([name for name in table.column_names if name not in UNREAD])
        types = {field.name: dtype_name(field.type) for field in table.schema}
        return replace(profile_of(read, self.whole.all_steps(night, read)), source=types)

    def verdict(self, night: int, profile: Profile | None = None, contract: Contract | None = None) -> Verdict:
        """The verdict on a clean night, or on another profile of it."""
        tonight, past = self.past[night], [self.past[known] for known in self.shop.known(night)]
        return judge(profile or tonight.profile, past, contract, Checks(on_finding="stop"), tonight.day)

    def planted(self, night: int, kinds: Mapping[str, Fault]) -> dict[str, Found]:
        """By kind of fault, what it makes of a night that the clean one does not make; those of rows are among them."""
        table, before = self.tables[night], self.tables[night - 1]
        clean = levels_of(self.verdict(night))
        tables = {name: self.whole.table(night, int(len(table) * share)) for name, share in FAULTS_OF_ROWS.items()}
        tables |= {AGAIN: before, f"{AGAIN} as well": pa.concat_tables([table, before])}
        tables |= {name: fault.plant(table) for name, fault in kinds.items()}
        found = {}
        for name, faulty in tables.items():
            columns, _, contract = kinds.get(name, Fault("", pa.Table.slice))
            levels = levels_of(self.verdict(night, self.profile(night, faulty), contract))
            levels = {key: level for key, level in levels.items() if key not in clean}
            is_named = any({*columns.split(", ")} & {*column.split(", ")} for column, _ in levels)
            level = "stop" if "stop" in levels.values() else "warning" if levels else "not found"
            found[name] = Found(level, is_named)
        return found


def planted_faults(
    shop: RowsShop, seed: int, kinds: Mapping[str, Fault], weeks: int = 4, days: Iterable[int] = (3, 5)
) -> dict[str, dict[str, list[int]]]:
    """By kind of fault, in how many nights of each week a fault makes a stop, only a warning, or nothing that the clean
    night does not make, and in how many of them a finding names a column of the fault. The nights are Thursdays and
    Saturdays, whole profiles of about 5,000 rows; the nights before are clean."""
    whole, rows = LabelledShop(seed, rows=5_000, nights=7 * weeks), shop.rows(seed, 7 * weeks)
    nights = Nights(whole, shop, [whole.table(night, count // 4) for night, count in enumerate(rows)])
    counts: Counter[tuple[str, str, int]] = Counter()
    for night in (7 * week + day for week in range(weeks) for day in days):
        for name, found in nights.planted(night, kinds).items():
            counts.update([(name, found.level, night // 7), *([(name, "named", night // 7)] if found.is_named else [])])
    levels, names = ("stop", "warning", "not found", "named"), dict.fromkeys(name for name, _, _ in counts)
    return {name: {level: [counts[name, level, week] for week in range(weeks)] for level in levels} for name in names}


def levels_of(verdict: Verdict) -> dict[tuple[str, str], str]:
    """The level of each finding, by (column, check)."""
    return {(finding.column, finding.check): finding.level for finding in verdict.findings}
