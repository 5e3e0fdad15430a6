"""Profiles of tables by plain numpy, and nights of a made-up shop that drift: nothing of it is code under test."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.dtypes import dtype_name
from tasks.gate.history import Past
from tasks.gate.profile import ColumnProfile, Profile, StepProfile

FIRST = date(2026, 9, 7)  # a Monday
COUNTED = 100_000  # distinct values of which each is counted


def profile_of(table: pa.Table, steps: Iterable[StepProfile] = ()) -> Profile:
    columns = {name: column_profile(name, table.column(name)) for name in table.column_names}
    return Profile(table.num_rows, columns, {step.key: step for step in steps})


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
        numbers = values.cast(pa.int64() if moment else pa.float64()).to_numpy().astype(np.float64)
        data |= {"mean": float(numbers.mean()), "std": float(numbers.std(ddof=1)) if len(numbers) > 1 else 0.0}
        bits = (numbers + 0.0).view(np.uint64)
        ordered = np.where(bits >> 63, ~bits, bits | np.uint64(1 << 63)) >> 48
        found_bins, numbers_in = np.unique(ordered, return_counts=True)
        data["bins"] = {int(b): int(n) for b, n in zip(found_bins, numbers_in, strict=True)}
    if pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        each = counted.field("values").to_pylist()
        places = np.array([zlib.crc32(str(value).encode()) & 1023 for value in each])
        data["buckets"] = np.bincount(places, counts, 1024).astype(int).tolist()
        if len(each) <= COUNTED:
            order = sorted(range(len(each)), key=lambda place: (-counts[place], str(each[place])))[:100]
            data |= {"top": [(each[place], int(counts[place])) for place in order], "top_exact": True}
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
        self.brand_of = np.minimum(rng.zipf(1.5, 3000), 180)
        self.base_price = np.exp(rng.normal(0, 1.0, 3000))
        self.started = rng.integers(-200, nights, 3000)  # the night on which a product comes

    def day(self, night: int) -> date:
        return FIRST + timedelta(days=night)

    def table(self, night: int) -> pa.Table:
        rng = np.random.default_rng([self.seed, night])
        weekend = self.day(night).weekday() >= 5
        rows = int(self.rows * 1.01**night * (0.7 if weekend else 1.0) * np.exp(self.volume[night]))
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
            "brand": pa.array([f"brand{b}" for b in self.brand_of[product]], mask=no_brand),
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

    def profile(self, night: int, fault: Callable[[pa.Table], pa.Table] | None = None) -> Profile:
        table = self.table(night) if fault is None else fault(self.table(night))
        has_user = "user_id" in table.column_names and pa.types.is_integer(table.schema.field("user_id").type)
        return profile_of(table, self.steps(night, table) if has_user else ())

    def past(self, night: int, profile: Profile | None = None) -> Past:
        return Past(f"v{night + 1:04d}", self.day(night), profile or self.profile(night))
