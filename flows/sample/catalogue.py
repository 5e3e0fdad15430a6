"""The shop's catalogue: what is true of a product whoever looks at it, as tables built once on the host.

Shares of rows (nulls, depths of the code, brands) hold because products are dealt out by their own share of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from flows.sample.draws import ChoiceDraw, TableDraw, draw, scramble, share_out, stream
from flows.sample.vocabulary import CODES, RELABELLED, SMARTPHONE, TWO_LEVELS

PRODUCTS = 206_876
BRANDS = 4_303
CATEGORIES = 691
CODED_CATEGORIES = 300
BRANDLESS_PRODUCTS = 41_000
BRAND_EXPONENT = 1.45
BRAND_NULL = 0.139
BRAND_NULL_DRIFT = 0.119
CODE_NULL = 0.322
CODE_NULL_DRIFT = 0.098
DEPTH_2 = 0.59
MEAN_PRICE = 292.0
LARGEST_PRICE = 257_407  # in cents
PHONE_BRANDS = 6
MEAN_BOUGHT = 0.526  # of carts that are followed by another event of the session

NO_CODE = 0
TWO = 1
THREE = 2


@dataclass(frozen=True, eq=False)
class Catalogue:
    """`popularity` picks a product; `facts` are, by product: id, category id, code, brand, cents; `bought` its rate.

    Codes and brands are indices, -1 where null. `bought` is out of 65,536: how often a cart is followed by a purchase.
    """

    popularity: ChoiceDraw
    facts: TableDraw
    bought: TableDraw


@cache
def catalogue(drift: bool = False) -> Catalogue:
    """The catalogue of October and November, or with `drift` that of December: the same products, other labels."""
    brand, weight = _brands_and_weights()
    family, code, category = _codes(brand, weight)
    bought = _bought(brand, code, weight)
    cents = _base_prices(code, weight)
    if drift:
        code = _codes_found(family, code, category, weight)
        code[code == CODES.index(SMARTPHONE)] = CODES.index(RELABELLED)
        brand = _brands_found(brand, weight)
    else:
        code = np.where(family == NO_CODE, -1, code)
    number = np.arange(PRODUCTS, dtype=np.uint64)
    product_id = 1_000_000 + scramble(number, 26, stream("product")).view(np.int64)
    spread = scramble(category.astype(np.uint64), 40, stream("category")).view(np.int64)
    category_id = 2_053_013_000_000_000_000 + spread
    facts = (product_id, category_id, code.astype(np.int32), brand.astype(np.int32), cents)
    return Catalogue(ChoiceDraw.of(weight), TableDraw(facts), TableDraw((bought,)))


def _chance(*names: object, of: np.ndarray) -> np.ndarray:
    """Return a number in [0, 1) for each element, a function of the names and the element."""
    return (draw(stream("catalogue", *names), of.astype(np.uint64)) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _brands_and_weights() -> tuple[np.ndarray, np.ndarray]:
    """Brand of each product (-1: none) and its share of the rows: brands by Zipf, in a brand nearly ~ 1 / position."""
    share = np.arange(1, BRANDS + 1) ** -BRAND_EXPONENT
    share *= (1 - BRAND_NULL) / share.sum()
    count = 1 + share_out(share**0.6, PRODUCTS - BRANDLESS_PRODUCTS - BRANDS)
    count = np.append(BRANDLESS_PRODUCTS, count)
    share = np.append(BRAND_NULL, share)
    first = np.cumsum(count) - count
    popularity = 1.0 / (np.arange(PRODUCTS) - np.repeat(first, count) + 8)
    popularity *= np.repeat(share / np.add.reduceat(popularity, first), count)
    return np.repeat(np.arange(-1, BRANDS), count), popularity


def _deal(weight: np.ndarray, shares: tuple[float, ...]) -> np.ndarray:
    """Deals items out to classes so that the classes' weights have these shares: heavy first, to the neediest."""
    whole = share_out(weight, 1 << 44)
    order = np.argsort(-whole, kind="stable")
    dealt = np.empty(len(weight), np.int64)
    parts = [round(share * 4096) for share in shares]
    need = [0] * len(parts)
    for item, amount in zip(order.tolist(), whole[order].tolist(), strict=True):
        need = [lack + part * amount for lack, part in zip(need, parts, strict=True)]
        neediest = need.index(max(need))
        need[neediest] -= 4096 * amount
        dealt[item] = neediest
    return dealt


def _codes(brand: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Family (none, two or three levels), code and category of each product.

    A product without a code has one too, hidden until December: its category's. A brand has three codes per family, the
    first for 70 % of its products, and the leading brands' first one of two levels is the smartphone.
    """
    coded = 1 - CODE_NULL
    family = _deal(weight, (CODE_NULL, coded * DEPTH_2, coded * (1 - DEPTH_2)))
    number = np.arange(PRODUCTS)
    place = np.searchsorted([0.7, 0.9], _chance("place", of=number), side="right")
    luck = _chance("code", of=((brand + 1) * 3 + place) * 3 + family)
    code = np.where(
        family == THREE, TWO_LEVELS + _rank_by_zipf(luck, len(CODES) - TWO_LEVELS), _rank_by_zipf(luck, TWO_LEVELS)
    )
    code[(family == TWO) & (brand >= 0) & (brand < PHONE_BRANDS) & (place == 0)] = CODES.index(SMARTPHONE)
    code_of = np.arange(CATEGORIES) % len(CODES)
    luck = _chance("category", of=number)
    several = (CODED_CATEGORIES - 1 - code) // len(CODES) + 1
    category = code + len(CODES) * (luck * several).astype(np.int64)
    uncoded = CODED_CATEGORIES + (luck * (CATEGORIES - CODED_CATEGORIES)).astype(np.int64)
    category = np.where(family == NO_CODE, uncoded, category)
    return family, np.where(family == NO_CODE, code_of[category], code), category


def _rank_by_zipf(luck: np.ndarray, count: int) -> np.ndarray:
    """Return a rank in [0, count) by Zipf with exponent 1 from a number in [0, 1)."""
    share = np.cumsum(1.0 / np.arange(1, count + 1))
    return np.minimum(np.searchsorted(share / share[-1], luck, side="right"), count - 1)


def _codes_found(family: np.ndarray, code: np.ndarray, category: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """December's codes: most categories without a code show theirs; the rest keep nulls at CODE_NULL_DRIFT of rows."""
    of_category = np.bincount(category, weight * (family == NO_CODE), CATEGORIES)[CODED_CATEGORIES:]
    remain = CODE_NULL_DRIFT / CODE_NULL
    hidden = np.append(np.zeros(CODED_CATEGORIES, bool), _deal(of_category, (remain, 1 - remain)) == 0)
    return np.where(hidden[category], -1, code)


def _brands_found(brand: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """December's brands: some products without a brand get one; the rest keep nulls at BRAND_NULL_DRIFT of the rows."""
    nameless = np.flatnonzero(brand < 0)
    remain = BRAND_NULL_DRIFT / BRAND_NULL
    named = nameless[_deal(weight[nameless], (remain, 1 - remain)) == 1]
    brands = brand.copy()
    brands[named] = (_chance("found brand", of=named) * BRANDS).astype(np.int64)
    return brands


def _base_prices(code: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Base price in cents: about log-normal, dear and cheap codes, up to LARGEST_PRICE, MEAN_PRICE over the rows."""
    number = np.arange(PRODUCTS)
    bell = sum(_chance("price", turn, of=number) - 0.5 for turn in range(4)) * 3**0.5
    level = 1.2 * (_chance("price level", of=code) - 0.5) + np.where(code == CODES.index(SMARTPHONE), 0.7, 0.0)
    price = np.exp(level + 0.8 * bell)
    low = 1.0
    high = 1e6
    for _ in range(60):
        scale = (low + high) / 2
        mean = np.average(np.minimum(price * scale, LARGEST_PRICE), weights=weight)
        low, high = (scale, high) if mean < MEAN_PRICE * 100 else (low, scale)
    return np.rint(np.clip(price * low, 77, LARGEST_PRICE)).astype(np.int64)


def _bought(brand: np.ndarray, code: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """How often a cart of the product is bought, of 65,536: brand and code add or take; the mean is MEAN_BOUGHT."""
    effect = 0.44 * (_chance("bought brand", of=brand + 1) - 0.5) + 0.36 * (_chance("bought code", of=code) - 0.5)
    effect += MEAN_BOUGHT - np.average(effect, weights=weight)
    return np.rint(np.clip(effect, 0.02, 0.98) * 65536).astype(np.uint16)
