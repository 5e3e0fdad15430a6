"""The look-alike data sets match the published facts of their originals."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from flows.sample import criteo, sample_table
from flows.sample.catalogue import BRANDS, CATEGORIES, PRODUCTS, catalogue
from flows.sample.vocabulary import CODES, brands


def share(condition):
    return pc.mean(pc.fill_null(condition, False)).as_py()


def most_frequent(column, count):
    """The non-null values with the most rows, the most frequent first."""
    counts = pc.value_counts(column.drop_null()).to_pylist()
    return [entry["values"] for entry in sorted(counts, key=lambda entry: -entry["counts"])[:count]]


@pytest.fixture(scope="module")
def shop():
    return sample_table("ecommerce", 0, 1_000_000, 1_000_000)


@pytest.fixture(scope="module")
def december():
    return sample_table("ecommerce", 0, 400_000, 400_000, drift=True)


@pytest.fixture(scope="module")
def clicks():
    return sample_table("criteo", 0, 300_000, 300_000)


@pytest.fixture(scope="module")
def toys():
    return sample_table("toy", 0, 400_000, 400_000)


class TestToy:
    def test_first_rows(self, toys):
        second = dt.timedelta(seconds=1)
        start = dt.datetime(2000, 1, 1)
        assert toys.slice(0, 3).to_pydict() == {
            "timestamp": [start, start + second, start + 2 * second],
            "id": [981, 957, 968],
            "name": ["Oliver", "Wendy", "Tim"],
            "x": [0.5062516421942447, 0.8405905770366091, 0.19040452957080944],
            "y": [0.2202231223568496, -0.07158294040935731, 0.39518345768298246],
            "label": [1, 1, 0],
        }

    def test_schema(self, toys):
        assert toys.schema == pa.schema(
            {
                "timestamp": pa.timestamp("us"),
                "id": pa.int64(),
                "name": pa.string(),
                "x": pa.float64(),
                "y": pa.float64(),
                "label": pa.uint8(),
            }
        )

    def test_time_starts_over_with_each_part_of_the_full_size(self):
        rows = sample_table("toy", 31_536_000, 31_536_002, 25 * 31_536_001)
        assert rows["timestamp"].to_pylist() == [dt.datetime(2000, 12, 31), dt.datetime(2000, 1, 1)]

    @pytest.mark.nightly
    def test_distributions(self, toys):
        column = {name: toys[name].to_numpy() for name in ("id", "x", "y", "label")}
        assert column["id"].mean() == pytest.approx(1000, abs=0.3)
        assert column["id"].var() == pytest.approx(1000, rel=0.01)
        for name in ("x", "y"):
            assert -1 <= column[name].min() < -0.9999
            assert 0.9999 < column[name].max() < 1
            assert column[name].var() == pytest.approx(1 / 3, rel=0.01)
        assert np.corrcoef([*column.values()])[np.triu_indices(4, 1)] == pytest.approx(0, abs=0.01)
        assert column["label"].mean() == pytest.approx(0.5, abs=0.005)

    def test_names_are_the_26_and_even(self, toys):
        counts = [entry["counts"] for entry in pc.value_counts(toys["name"]).to_pylist()]
        assert len(counts) == 26
        expected = toys.num_rows / 26
        assert sum((count - expected) ** 2 / expected for count in counts) < 60  # chi-square, 25 degrees of freedom


class TestCriteo:
    def test_columns(self, clicks):
        assert clicks.column_names == ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]
        assert [str(clicks.schema.field(name).type) for name in ("label", "I1", "C1")] == ["uint8", "int32", "string"]

    def test_first_row(self, clicks):
        row = list(clicks.slice(0, 1).to_pylist()[0].values())
        assert row[:8] == [0, None, 73, None, 2, 3813, 35, 0]
        assert row[14:18] == ["33124f7d", "c14e7a48", "495926e1", "7d4149a2"]

    def test_one_in_31_is_a_click(self, clicks):
        assert pc.mean(clicks["label"]).as_py() == pytest.approx(0.032, abs=0.002)

    def test_null_rates(self, clicks):
        rates = dict.fromkeys(clicks.column_names, 0.0)
        rates |= {name: rate for rate, names in criteo.NULL_GROUPS.items() for name in names}
        assert {name: clicks[name].null_count / clicks.num_rows for name in rates} == pytest.approx(rates, abs=0.005)
        assert rates["I12"] == 0.77
        assert rates["C22"] == 0.76

    def test_columns_of_a_group_are_null_together(self, clicks):
        for names in criteo.NULL_GROUPS.values():
            assert all(clicks[name].is_null().equals(clicks[names[0]].is_null()) for name in names)
        assert not clicks["I1"].is_null().equals(clicks["C19"].is_null())

    @pytest.mark.nightly
    def test_counts_have_long_tails_and_minus_one_and_two(self, clicks):
        for name, (median, _, largest, _, _) in criteo.COUNTS.items():
            assert pc.min(clicks[name]).as_py() >= -2
            assert pc.max(clicks[name]).as_py() <= largest
            counted = clicks[name].filter(pc.greater_equal(clicks[name], 0))
            assert pc.quantile(counted, 0.5)[0].as_py() == pytest.approx(median, rel=0.15, abs=1.0)
            assert pc.max(clicks[name]).as_py() > 15 * median
        assert share(pc.equal(clicks["I2"], -1)) == pytest.approx(0.1, abs=0.005)
        assert share(pc.equal(clicks["I2"], -2)) == pytest.approx(0.004, abs=0.001)

    @pytest.mark.nightly
    def test_categories_are_eight_hexadecimal_digits(self, clicks):
        for name in criteo.CARDINALITY:
            assert pc.all(pc.match_substring_regex(clicks[name], "^[0-9a-f]{8}$")).as_py()

    @pytest.mark.nightly
    def test_cardinalities(self, clicks):
        for name, count in criteo.CARDINALITY.items():
            seen = pc.count_distinct(clicks[name]).as_py()
            assert seen <= count
            if count <= 100:
                assert seen == count
        assert pc.count_distinct(clicks["C20"]).as_py() > 50_000

    @pytest.mark.nightly
    def test_the_most_frequent_value_of_a_large_vocabulary_has_9_to_19_percent(self, clicks):
        for name in ("C1", "C10", "C11", "C20", "C21", "C22"):
            column = clicks[name].drop_null()
            assert 0.09 < share(pc.equal(column, most_frequent(column, 1)[0])) < 0.19

    @pytest.mark.nightly
    def test_distinct_ranks_have_distinct_texts(self):
        text = criteo.value("C1", np.arange(200_000, dtype=np.int64))
        assert len(np.unique(text.view(np.uint64))) == 200_000

    def test_another_seed_has_the_same_vocabulary(self, clicks):
        other = sample_table("criteo", 0, 50_000, 50_000, seed=9)
        assert set(other["C9"].to_pylist()) <= set(clicks["C9"].to_pylist())


class TestEcommerce:
    def test_first_row(self, shop):
        assert shop.slice(0, 1).to_pylist() == [
            {
                "event_time": dt.datetime(2019, 10, 1),
                "event_type": "view",
                "product_id": 25313688,
                "category_id": 2053013333066664432,
                "category_code": None,
                "brand": "samsung",
                "price": 230.57,
                "user_id": 522418286,
                "user_session": "03d255cd-5bf0-466b-9ac3-2e63acaa99e0",
            }
        ]

    def test_event_types(self, shop):
        got = {kind: share(pc.equal(shop["event_type"], kind)) for kind in ("view", "cart", "purchase")}
        assert got == pytest.approx({"view": 0.949, "cart": 0.036, "purchase": 0.015}, abs=0.001)

    def test_nulls_and_depth(self, shop):
        assert shop["category_code"].null_count / shop.num_rows == pytest.approx(0.322, abs=0.003)
        assert shop["brand"].null_count / shop.num_rows == pytest.approx(0.139, abs=0.003)
        depth = pc.count_substring(shop["category_code"].drop_null(), ".")
        assert share(pc.equal(depth, 1)) == pytest.approx(0.59, abs=0.005)
        assert share(pc.equal(depth, 2)) == pytest.approx(0.41, abs=0.005)
        assert sum(shop[name].null_count for name in shop.column_names) == (
            shop["category_code"].null_count + shop["brand"].null_count
        )

    def test_vocabularies_of_the_catalogue(self):
        product_id, category_id, code, brand, _ = catalogue().facts.arrays
        assert len(np.unique(product_id)) == PRODUCTS == 206_876
        assert len(np.unique(category_id)) == CATEGORIES == 691
        assert set(np.unique(code).tolist()) == {-1, *range(129)}
        assert set(np.unique(brand).tolist()) == {-1, *range(BRANDS)}
        assert (len(CODES), len(set(CODES)), len(set(brands(BRANDS)))) == (129, 129, 4_303)
        assert {len(str(number)) for number in category_id.tolist()} == {19}

    @pytest.mark.nightly
    def test_a_category_id_has_one_code(self, shop, december):
        for table in (shop, december):
            pairs = table.group_by(["category_id", "category_code"]).aggregate([])
            assert pairs.num_rows == pc.count_distinct(table["category_id"]).as_py()

    @pytest.mark.nightly
    def test_a_product_has_one_category_and_brand_and_nearly_one_price(self, shop):
        facts = shop.group_by(["product_id", "category_id", "category_code", "brand"]).aggregate([])
        assert facts.num_rows == pc.count_distinct(shop["product_id"]).as_py()
        paid = (
            shop.filter(pc.greater(shop["price"], 5))
            .group_by("product_id")
            .aggregate([("price", "min"), ("price", "max")])
        )
        assert pc.max(pc.divide(paid["price_max"], paid["price_min"])).as_py() < 1.11

    @pytest.mark.nightly
    def test_brands_are_zipf(self, shop):
        assert most_frequent(shop["brand"], 6) == ["samsung", "apple", "xiaomi", "huawei", "oppo", "lg"]
        counts = {entry["values"]: entry["counts"] for entry in pc.value_counts(shop["brand"]).to_pylist()}
        assert counts["samsung"] / counts["apple"] == pytest.approx(2**1.45, rel=0.03)
        assert counts["samsung"] / counts["lg"] == pytest.approx(6**1.45, rel=0.06)

    def test_prices(self, shop):
        assert pc.min(shop["price"]).as_py() == 0
        assert pc.max(shop["price"]).as_py() <= 2574.07
        assert pc.mean(shop["price"]).as_py() == pytest.approx(292, rel=0.02)
        assert share(pc.equal(shop["price"], 0)) == pytest.approx(0.002, abs=0.0005)

    @pytest.mark.nightly
    def test_users_and_sessions_grow_with_the_rows(self, shop):
        users, sessions = (pc.count_distinct(shop[name]).as_py() for name in ("user_id", "user_session"))
        assert users / shop.num_rows == pytest.approx(5.32 / 109.95, rel=0.02)
        assert sessions / shop.num_rows == pytest.approx(23.0 / 109.95, rel=0.02)

    @pytest.mark.nightly
    def test_session_lengths_are_geometric(self, shop):
        length = np.sort(pc.value_counts(shop["user_session"]).field("counts").to_numpy())
        assert length.mean() == pytest.approx(4.8, rel=0.02)
        for k in (1, 5, 10):
            assert np.mean(length > k) == pytest.approx((1 - 1 / 4.8) ** k, abs=0.015)

    @pytest.mark.nightly
    def test_a_session_has_one_user_and_an_uuid(self, shop):
        pairs = shop.group_by(["user_session", "user_id"]).aggregate([])
        assert pairs.num_rows == pc.count_distinct(shop["user_session"]).as_py()
        pattern = "^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"
        assert pc.all(pc.match_substring_regex(shop["user_session"], pattern)).as_py()

    @pytest.mark.parametrize("rows", [2_000, 1_000_000])
    @pytest.mark.nightly
    def test_events_of_a_session_are_near_each_other(self, rows, shop):
        table = sample_table("ecommerce", 0, rows, rows) if rows < shop.num_rows else shop
        second = pc.cast(table["event_time"], pa.int64())
        spans = table.set_column(0, "t", second).group_by("user_session").aggregate([("t", "min"), ("t", "max")])
        minutes = pc.subtract(spans["t_max"], spans["t_min"]).to_numpy() / 60e6
        assert np.quantile(minutes, 0.5) < 10
        assert np.quantile(minutes, 0.99) < 120

    def test_two_months_in_time_order(self, shop):
        time = shop["event_time"].to_numpy()
        assert np.all(np.diff(time) >= np.timedelta64(0))
        assert str(time[0])[:19] == "2019-10-01T00:00:00"
        assert str(time[-1])[:13] == "2019-11-30T23"

    @pytest.mark.nightly
    def test_hours_have_a_cycle_and_mid_november_a_peak(self, shop):
        hours = np.bincount(pc.hour(shop["event_time"]).to_numpy(), minlength=24)
        assert hours.argmax() == 16
        assert hours.min() * 5 < hours.max()
        time = shop["event_time"].to_numpy().astype("datetime64[D]")
        days, counts = np.unique(time, return_counts=True)
        assert len(days) == 61
        assert str(days[counts.argmax()]) in ("2019-11-15", "2019-11-16", "2019-11-17")
        assert counts.max() > 3 * np.median(counts)

    @pytest.mark.nightly
    def test_a_purchase_follows_a_cart_of_the_session_and_product(self, shop):
        keys = ["user_session", "product_id"]
        bought, carted = (
            shop.filter(pc.equal(shop["event_type"], kind)).select(keys).to_pylist() for kind in ("purchase", "cart")
        )
        known = {tuple(row.values()) for row in carted}
        assert np.mean([tuple(row.values()) in known for row in bought]) > 0.999

    @pytest.mark.nightly
    def test_buying_depends_on_brand_and_on_category(self, shop):
        table = shop.filter(pc.not_equal(shop["event_type"], "view"))
        table = table.append_column("bought", pc.cast(pc.equal(table["event_type"], "purchase"), pa.int64()))
        for column in ("brand", "category_code"):
            groups = table.group_by(column).aggregate([("bought", "mean"), ("bought", "count")])
            groups = groups.filter(pc.greater(groups["bought_count"], 500))
            assert groups.num_rows > 8
            count, mean = (groups[name].to_numpy() for name in ("bought_count", "bought_mean"))
            overall = np.average(mean, weights=count)
            chi = (count * (mean - overall) ** 2).sum() / (overall * (1 - overall)) / (len(count) - 1)
            assert chi > 10  # 1 if groups did not differ

    @pytest.mark.nightly
    def test_exact_duplicates_among_carts(self, shop):
        seeds = [sample_table("ecommerce", 0, 1_000_000, 1_000_000, seed=seed) for seed in (1, 2)]
        carts = pa.concat_tables(table.filter(pc.equal(table["event_type"], "cart")) for table in (shop, *seeds))
        distinct = carts.group_by(carts.column_names).aggregate([]).num_rows
        assert 1 - distinct / carts.num_rows == pytest.approx(0.0012, abs=0.0004)
        rest = shop.filter(pc.not_equal(shop["event_type"], "cart")).slice(0, 200_000)
        assert rest.group_by(rest.column_names).aggregate([]).num_rows == rest.num_rows

    @pytest.mark.nightly
    def test_december(self, shop, december):
        assert december["category_code"].null_count / december.num_rows == pytest.approx(0.098, abs=0.004)
        assert december["brand"].null_count / december.num_rows == pytest.approx(0.119, abs=0.004)
        assert share(pc.equal(shop["category_code"], "electronics.smartphone")) > 0.15
        assert share(pc.equal(december["category_code"], "electronics.smartphone")) == 0
        assert share(pc.equal(december["category_code"], "construction.tools.light")) > 0.15
        assert str(december["event_time"][0])[:10] == "2019-12-01"
        assert str(december["event_time"][-1])[:10] == "2019-12-31"

    def test_december_knows_the_products_of_autumn(self):
        before, after = catalogue().facts.arrays, catalogue(drift=True).facts.arrays
        for kept in (0, 1, 4):  # product id, category id, price
            assert np.array_equal(before[kept], after[kept])
        named = before[3] >= 0
        assert np.array_equal(before[3][named], after[3][named])


class TestWide:
    def test_eight_factors_stand_out_of_the_noise(self):
        table = sample_table("wide", 0, 20_000, 20_000, columns=60)
        matrix = np.column_stack([table[name].to_numpy() for name in table.column_names[:-1]])
        singular = np.linalg.svd(matrix - matrix.mean(axis=0), compute_uv=False)
        assert singular[7] > 1.5 * singular[8]
        assert singular[8] < 1.1 * singular[59]

    @pytest.mark.nightly
    def test_the_target_follows_two_factors(self):
        table = sample_table("wide", 0, 20_000, 20_000, columns=60)
        matrix = np.column_stack([np.ones(20_000), *(table[name].to_numpy() for name in table.column_names[:-1])])
        target = table["y"].to_numpy()
        rest = target - matrix @ np.linalg.lstsq(matrix, target)[0]
        assert 1 - rest.var() / target.var() == pytest.approx(0.97, abs=0.03)

    def test_types_and_offsets(self):
        table = sample_table("wide", 0, 1_000, 1_000)
        assert table.schema == pa.schema({**{f"x{j:04d}": pa.float64() for j in range(100)}, "y": pa.float64()})
        assert sum(column.null_count for column in table.columns) == 0
