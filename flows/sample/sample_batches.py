"""The shop night by night: look-alike days that drift as real ones do, each a function of its number and the seed.

Rows follow the weekday, a slow trend and noise. So do the mix of goods, the hours and the carts; brands have weeks of
their own. Products fade within a week, at a time of their own, and a successor takes their place: at the
head of the catalogue one that many see. Users come for the first time, once or to return.

Users are numbered without a list of them: the first session of each lane of a window is a visitor who will return, who
can be drawn by (night, window, lane) ever after, and the number of windows is known for every night.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from functools import cache, lru_cache
from types import ModuleType

import numpy as np
import pyarrow as pa

from flows.sample import draws
from flows.sample.catalogue import BRANDS, PRODUCTS, Catalogue, catalogue
from flows.sample.draws import Array, below, draw, field, rate, stream
from flows.sample.ecommerce import (
    CART,
    FULL_ROWS,
    FULL_USERS,
    HOURS,
    SESSION_EVENTS,
    STEPS,
    Events,
    World,
    lanes_of,
    rows_of,
)
from flows.sample.vocabulary import CODES
from tasks.errors import JobError

START = dt.date(2026, 10, 1)
MOST_BATCHES = 3660
# users who come for the first time, per row
NEW_IDS = FULL_USERS / FULL_ROWS
FEWEST_NEW_IDS = 0.02
RULE = 1  # raise it when the same night gets other rows

_WEEKDAYS = (0.95, 0.92, 0.94, 0.97, 1.02, 1.12, 1.08)  # rows, Monday first
_CARTS = (1.0, 0.99, 0.98, 1.0, 1.02, 1.08, 1.06)
_WEEKEND_HOURS = (1.2, 1.1, 0.9, 0.7, 0.7, 0.8, 0.9, 1.0, 1.15, 1.25, 1.25, 1.2, *[1.1] * 4, *[1.0] * 4, *[1.1] * 4)
_TREND = 0.002  # of the rows of the first night, each night
_PRICE_TREND = 3  # in 10,000 of the base price, each night
_OLD_USERS = 20  # nights of returning visitors who came before the first night
_FADES = 6  # days in which a product gives way to its successor
# share of places whose product never goes; days that the others stay
_STAYS = 0.35
_SHORTEST = 40
_LONGEST = 400


@dataclass(frozen=True)
class SampleBatch(World):
    """One night: `number` counts from 0 at `start`; `mean` is the rows of a night before weekday, trend and noise.

    `known`: returning visitors before this night; `slots`: places for rows in the nights before, which number the
    visitors who come once. Both follow from the rest.
    """

    start: dt.date
    number: int
    mean: int
    new_ids: float
    known: int
    slots: int

    @property
    def day(self) -> dt.date:
        return self.start + dt.timedelta(self.number)

    @property
    def hours(self) -> np.ndarray:
        """The relative number of rows of every hour of the day: later at weekends, and a little by chance."""
        shape = np.array(HOURS) * (_WEEKEND_HOURS if self.day.weekday() >= 5 else 1.0)
        luck = _bell("hours", self.seed, of=self.number * 24 + np.arange(24))
        return np.rint(shape * 100 * (1 + 0.03 * luck)).astype(np.int64)

    @property
    def opening(self) -> int:
        return (self.day - dt.date(1970, 1, 1)).days * 86_400

    @property
    def session_events(self) -> float:
        """Events of a session: 4.8, or fewer where as many new users as are wanted need more sessions."""
        return max(1.0, min(SESSION_EVENTS, 0.9 / self.new_ids))

    @property
    def starts(self) -> np.uint16:
        return rate(min((STEPS / self.session_events - 1) / (STEPS - 1), 65_535 / 65_536))

    @property
    def cart(self) -> np.uint16:
        luck = float(_bell("cart", self.seed, of=np.array([self.number]))[0])
        return rate(int(CART) / 65_536 * _CARTS[self.day.weekday()] * (1 + 0.02 * luck))

    def stream(self, column: str) -> np.uint64:
        return stream("ecommerce", "night", self.number, column, self.seed)

    def place(self, xp: ModuleType, goods: Catalogue, number: Array) -> Array:
        """Drawn twice where the first is out of favour this night."""
        counter = number.view(np.uint64)
        first, second = (goods.popularity.pick(xp, draw(self.stream(f"product {turn}"), counter)) for turn in (1, 2))
        liked = field(draw(self.stream("liked"), counter), 0) < xp.asarray(_favour(self))[first]
        return xp.where(liked, first, second)

    def facts(self, xp: ModuleType, goods: Catalogue, events: Events) -> tuple[Array, ...]:
        counter = events.product.view(np.uint64)
        place = self.place(xp, goods, events.product)
        _, category_id, code, brand, cents = goods.facts.look_up(xp, place)
        stays, phase = _lifetimes().look_up(xp, place)
        bits = draw(self.stream("age"), counter)
        generation = (phase + self.number + below(bits, _FADES)) // stays
        number = (place + PRODUCTS * generation).view(np.uint64)
        product_id = 1_000_000 + draws.scramble(number, 26, stream("product")).view(np.int64)
        percent = xp.where(generation > 0, 85 + below(draw(stream("price", "successor"), number), 31), 100)
        cents = cents * percent * (10_000 + _PRICE_TREND * self.number) // 1_000_000
        brand = xp.where(field(bits, 0) < _draw_null_rate(self, "brand", 0.006), -1, brand)
        code = xp.where(field(bits, 1) < _draw_null_rate(self, "code", 0.003), -1, code)
        return place, product_id, category_id, code, brand, xp.maximum(cents, 77)

    def visitors(self, xp: ModuleType, session: Array) -> Array:
        lanes = self.lanes
        window = session // (STEPS * lanes)
        rest = session % (STEPS * lanes)
        bits = draw(self.stream("user"), session.view(np.uint64))
        once = field(bits, 1) < rate(min(self._compute_one_time_share(), 65_535 / 65_536))
        even = bits >> np.uint64(32)
        far = ((((even * even) >> np.uint64(32)) * np.uint64(self.known)) >> np.uint64(32)).view(np.int64)
        known = xp.where((bits & np.uint64(1)) == 0, far, self.known - 1 - far)  # one who came long ago, or lately
        number = xp.where(once, 2 * (self.slots + session) + 1, 2 * known)
        number = xp.where(rest < lanes, 2 * (self.known + window * lanes + rest), number)
        bits_of_ids = max(30, (2 * self.mean).bit_length() + 15)
        return draws.scramble(number.view(np.uint64), bits_of_ids, stream("user")).view(np.int64) + 512_000_000

    def _compute_one_time_share(self) -> float:
        """Compute the share of the sessions (but for those that begin a window) whose user comes this once."""
        return (self.new_ids - 1 / STEPS) / max(1 / self.session_events - 1 / STEPS, 1e-9)


@cache
def make_batch(number: int, mean: int, seed: int = 0, start: dt.date = START, new_ids: float = NEW_IDS) -> SampleBatch:
    """Night `number` (0 is the first) of a shop with `mean` rows per night, whatever the number of nights is.

    new_ids: users who come for the first time, per row, 0.02 .. 1; above 0.19 sessions are shorter than 4.8 events.
    Errors: JobError for values out of range.
    """
    if not 0 <= number < MOST_BATCHES:
        raise JobError(f"night {number} cannot be made", do=f"there are nights 0 .. {MOST_BATCHES - 1}")
    if mean < 1:
        raise JobError(f"a sample of {mean} rows", do="give 1 or more")
    if not FEWEST_NEW_IDS <= new_ids <= 1:
        raise JobError(f"new_ids is {new_ids}", do=f"give {FEWEST_NEW_IDS} .. 1, new users per row")
    known = max(1, _OLD_USERS * mean // STEPS)
    slots = 0
    for earlier in range(number):
        rows = _draw_row_count(earlier, mean, seed, start)
        windows = _returning(rows, lanes_of(rows, 24))
        known = known + windows
        slots = slots + windows * STEPS
    return SampleBatch(
        _draw_row_count(number, mean, seed, start), seed, False, start, number, mean, new_ids, known, slots
    )


def block(first: int, stop: int, of: SampleBatch, xp: ModuleType = np) -> pa.Table:
    """Rows first .. stop - 1 of a night; columns as `ecommerce.block` describes them, in the time of the night's day.

    0.6 % more of the brands and 0.3 % more of the codes are null than the products have.
    """
    return rows_of(of, catalogue(), first, stop, xp)


def _bell(*names: object, of: np.ndarray) -> np.ndarray:
    """About normal numbers with mean 0 and deviation 1, functions of the names and the whole numbers `of`."""
    total = np.zeros(len(of))
    for turn in range(4):
        bits = draw(stream("nights", *names, turn), of.astype(np.uint64))
        total += (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53 - 0.5
    return total * 3**0.5


def _draw_row_count(number: int, mean: int, seed: int, start: dt.date) -> int:
    weekday = (start + dt.timedelta(number)).weekday()
    luck = float(_bell("rows", seed, of=np.array([number]))[0])
    return max(1, round(mean * _WEEKDAYS[weekday] * (1 + _TREND * number) * (1 + 0.02 * luck)))


def _returning(rows: int, lanes: int) -> int:
    return -(-rows // (STEPS * lanes)) * lanes


def _draw_null_rate(of: SampleBatch, column: str, mean: float) -> np.uint16:
    """How often, of 65,536, a night loses a value that the product has."""
    luck = float(_bell("lost", column, of.seed, of=np.array([of.number]))[0])
    return rate(mean * (1 + 0.1 * luck))


@cache
def _lifetimes() -> draws.TableDraw:
    """How many days a product of each place stays, and how many of them are over on the first night."""
    number = np.arange(PRODUCTS, dtype=np.uint64)
    bits = draw(stream("nights", "lifetime"), number)
    stays = _SHORTEST + below(bits, _LONGEST - _SHORTEST)
    for_ever = field(bits, 0) < rate(_STAYS)
    phase = np.where(for_ever, 0, below(draw(stream("nights", "phase"), number), 1 << 20) * stays >> 20)
    return draws.TableDraw((np.where(for_ever, 1 << 20, stays), phase))


@lru_cache(maxsize=8)
def _favour(of: SampleBatch) -> np.ndarray:
    """How often, of 65,536, the first draw of each place stands: codes by weekday, season and noise; brands by week."""
    day = of.number
    code = np.arange(len(CODES) + 1)
    season = np.sin(2 * np.pi * (day / (60 + 20 * _bell("period", of=code)) + _bell("begins", of=code)))
    weekday = _bell("weekday", of=code * 7 + of.day.weekday())
    log_code = 0.12 * weekday + 0.1 * season + 0.04 * _bell("code", of.seed, of=code * 4096 + day)
    log_code[0] = 0  # without a code: of all kinds
    brand = np.arange(BRANDS + 1)
    offered = _bell("offer", of.seed, of=brand * 4096 + day // 7) > 1.4
    log_brand = 0.3 * offered + 0.03 * _bell("brand", of.seed, of=brand * 4096 + day)
    _, _, codes, brands, _ = catalogue().facts.arrays
    favour = 0.5 * np.exp(log_code[codes + 1] + log_brand[brands + 1])
    return np.rint(np.clip(favour, 0.05, 1) * 65_535).astype(np.uint16)
