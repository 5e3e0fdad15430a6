"""A look-alike of the REES46 multi-category shop: what visitors viewed, put into the cart and bought, in time order.

Visitors come in `lanes` (a power of two, about the rows per minute): in each lane one session follows another, one
event per step, and a step is one row of every lane, the lanes shuffled. So events of a session are about a minute apart
and rows are in time order. Lanes are cut into windows of 64 steps; any window can be made on its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import ModuleType

import numpy as np
import pyarrow as pa

from flows.sample import draws
from flows.sample.catalogue import BRANDS, LARGEST_PRICE, Catalogue, catalogue
from flows.sample.draws import Array, below, draw, field, rate, stream
from flows.sample.sample_columns import letters, numbers, words
from flows.sample.sample_text import uuid
from flows.sample.vocabulary import CODES, brands

FULL_ROWS = 109_950_743
FULL_USERS = 5_320_000
STEPS = 64
MOST_LANES = 1024
SESSION_EVENTS = 4.8
# A session starts at a window's first step, else by chance, so that a session has 4.8 events in the mean.
STARTS = rate((STEPS / SESSION_EVENTS - 1) / (STEPS - 1))
CART = rate(0.0371)
STAYS = rate(0.5)
DUPLICATE = rate(0.0012)
ZERO_PRICE = rate(0.002)
# More users are drawn from than seen, since some never come: makes FULL_USERS seen at FULL_ROWS.
UNSEEN_USERS = 1.0618

EVENT_TYPES = ("view", "cart", "purchase")
VIEW = 0
CARTED = 1
BOUGHT = 2

# 2019-10-01 and 2019-12-01, 00:00:00 UTC
OCTOBER = 1_569_888_000
DECEMBER = 1_575_158_400
_DAYS = (*[100] * 31, *[116] * 12, 170, 260, 480, 520, 450, 170, *[116] * 12)
_DECEMBER_DAYS = (*[116] * 24, *[90] * 7)
HOURS = (18, 22, 40, 66, 88, 100, 106, 110, 112, 112, 110, 108, 108, 112, 120, 128, 132, 126, 110, 84, 56, 36, 24, 18)


@dataclass(frozen=True)
class World:
    """One data set: its size, seed and month, and what follows from them."""

    rows: int
    seed: int
    drift: bool

    @property
    def hours(self) -> np.ndarray:
        """The relative number of rows of every hour."""
        return np.outer(_DECEMBER_DAYS if self.drift else _DAYS, HOURS).ravel()

    @property
    def lanes(self) -> int:
        """Sessions that are open at a time: the power of two next below the rows per minute, 1 .. MOST_LANES."""
        return lanes_of(self.rows, len(self.hours))

    @property
    def users(self) -> int:
        """Users that sessions are drawn from: they grow with the rows."""
        return max(1, round(self.rows * FULL_USERS / FULL_ROWS * UNSEEN_USERS))

    @property
    def opening(self) -> int:
        """The first second, since 1970."""
        return DECEMBER if self.drift else OCTOBER

    @property
    def starts(self) -> np.uint16:
        """How often, of 65,536, an event begins another session, but for a window's first step."""
        return STARTS

    @property
    def cart(self) -> np.uint16:
        """How often, of 65,536, an event is a cart."""
        return CART

    def stream(self, column: str) -> np.uint64:
        return stream("ecommerce", "december" if self.drift else "autumn", column, self.seed)

    def place(self, xp: ModuleType, goods: Catalogue, number: Array) -> Array:
        """Return the place in the catalogue of the product that is drawn from a number."""
        return goods.popularity.pick(xp, draw(self.stream("product"), number.view(np.uint64)))

    def facts(self, xp: ModuleType, goods: Catalogue, events: Events) -> tuple[Array, ...]:
        """Of each event's product: place in the catalogue, id, category id, code, brand, base price in cents."""
        place = self.place(xp, goods, events.product)
        return place, *goods.facts.look_up(xp, place)

    def visitors(self, xp: ModuleType, session: Array) -> Array:
        """Return the user of each session, which its first slot stands for."""
        return _users(self, draw(self.stream("user"), session.view(np.uint64)))


def lanes_of(rows: int, hours: int) -> int:
    """How many sessions are open at a time where so many rows come in so many hours."""
    per_minute = rows // (60 * hours)
    return min(MOST_LANES, 1 << max(0, per_minute.bit_length() - 1))


def block(start: int, stop: int, rows: int, seed: int, xp: ModuleType = np, drift: bool = False) -> pa.Table:
    """Rows start .. stop - 1 of `rows`, which sets the users, and how many sessions are open at a time.

    event_time: timestamp[us], UTC without saying so. event_type: view 94.9 %, cart 3.6 %, purchase 1.5 %; a purchase is
    the event after its cart in the same session, more or less often by brand and code. price: the product's base price
    give or take 5 % by the week, 0 in 0.2 % of the rows. Null: category_code, brand. `drift`: December 2019.
    """
    return rows_of(World(rows, seed, drift), catalogue(drift), start, stop, xp)


def rows_of(world: World, goods: Catalogue, start: int, stop: int, xp: ModuleType) -> pa.Table:
    """Rows start .. stop - 1 of a world."""
    size = STEPS * world.lanes
    first = start // size
    events = _windows(xp, world, goods, first, -(-stop // size))
    row = xp.arange(start, stop, dtype=np.int64)
    source = _lane_order(xp, world, row)
    before = _lane_order(xp, world, xp.maximum(row - 1, 0))
    copied = _duplicates(world, row, size, events.kind, before - first * size)
    slot = xp.where(copied, before, source) - first * size
    second = _seconds(xp, world, xp.where(copied, row - 1, row), events.session[slot])
    return _make_event_table(xp, world, goods, second, events.at(slot))


@dataclass(frozen=True)
class Events:
    """Arrays by event: what happened, the number that its product is drawn from, its session's first slot."""

    kind: Array
    product: Array
    session: Array

    def at(self, index: Array) -> Events:
        return Events(self.kind[index], self.product[index], self.session[index])


def _windows(xp: ModuleType, world: World, goods: Catalogue, first: int, last: int) -> Events:
    """Return the events of windows first .. last - 1 in the order of slots: window, step, lane."""
    lanes = world.lanes
    shape = (last - first, STEPS, lanes)
    slot = xp.arange(first * STEPS * lanes, last * STEPS * lanes, dtype=np.int64)
    bits = draw(world.stream("event"), slot.view(np.uint64))
    starts = (field(bits, 0) < world.starts).reshape(shape)
    starts[:, 0] = True
    step = xp.broadcast_to(xp.arange(STEPS, dtype=np.int64).reshape(1, STEPS, 1), shape)
    session = slot.reshape(shape) - (step - _last_start(xp, starts)) * lanes

    wanted = (field(bits, 1) < world.cart).reshape(shape)
    carted = wanted.copy()  # not right after a cart of the same session: that event may be its purchase
    carted[:, 1:] &= ~(wanted[:, :-1] & ~starts[:, 1:])
    product = xp.where((field(bits, 2) < STAYS).reshape(shape), session, slot.reshape(shape)).ravel()
    after = xp.zeros(shape, bool)
    after[:, 1:] = carted[:, :-1] & ~starts[:, 1:]
    chance = xp.flatnonzero(after)
    (limit,) = goods.bought.look_up(xp, world.place(xp, goods, product[chance - lanes]))
    bought = chance[field(bits[chance], 3) < limit]
    product[bought] = product[bought - lanes]
    kind = carted.ravel().astype(np.int8)
    kind[bought] = BOUGHT
    return Events(kind, product, session.ravel())


def _last_start(xp: ModuleType, starts: Array) -> Array:
    """Return the step of the last start at or before each step of its window, by doubling."""
    step = xp.arange(STEPS, dtype=np.int8).reshape(1, STEPS, 1)
    last = xp.where(starts, step, np.int8(0))
    reach = 1
    while reach < STEPS:
        last[:, reach:] = xp.maximum(last[:, reach:], last[:, :-reach].copy())
        reach *= 2
    return last.astype(np.int64)


def _lane_order(xp: ModuleType, world: World, row: Array) -> Array:
    """Return the slot that a row shows: the same step, the lanes in an order of the step's own."""
    lanes = world.lanes
    step = row // lanes
    bits = draw(world.stream("lanes"), step.view(np.uint64))
    odd = (bits >> np.uint64(32)) | np.uint64(1)
    offset = bits & np.uint64(0xFFFFFFFF)
    lane = ((row - step * lanes).view(np.uint64) * odd + offset) & np.uint64(lanes - 1)
    return step * lanes + lane.view(np.int64)


def _duplicates(world: World, row: Array, size: int, kind: Array, before: Array) -> Array:
    """Where a row is an exact copy of the one before: after 0.12 % of the carts, never at a window's first row."""
    lucky = field(draw(world.stream("duplicate"), row.view(np.uint64)), 0) < DUPLICATE
    inside = row % size > 0
    return lucky & inside & (kind[before * inside] == CARTED)


def _seconds(xp: ModuleType, world: World, row: Array, session: Array) -> Array:
    """Seconds since 1970 of a row: even inside an hour; with one lane a session's events stay close to its first."""
    second = _clock(xp, world, row)
    if world.lanes > 1:
        return second
    opened = _clock(xp, world, session)
    pause = 20 + below(draw(world.stream("pause"), session.view(np.uint64)), 100)
    return xp.minimum(second, opened + (row - session) * pause)


def _clock(xp: ModuleType, world: World, row: Array) -> Array:
    first_row, count = draws.on_device(_rows_by_hour(world), xp)
    hour = xp.searchsorted(first_row, row, side="right") - 1
    return world.opening + hour * 3600 + (row - first_row[hour]) * 3600 // count[hour]


@cache
def _rows_by_hour(world: World) -> draws.TableDraw:
    """First row number and number of rows of every hour; rounded up, so that row 0 is in the first hour."""
    weight = world.hours.tolist()
    total = sum(weight)
    seen = 0
    edges = [0]
    for amount in weight:
        seen += amount
        edges.append(-(-world.rows * seen // total))
    return draws.TableDraw((np.array(edges[:-1]), np.diff(edges)))


def _make_event_table(xp: ModuleType, world: World, goods: Catalogue, second: Array, events: Events) -> pa.Table:
    place, product_id, category_id, code, brand, cents = world.facts(xp, goods, events)
    session = events.session.view(np.uint64)
    identity = uuid(xp, *(draw(world.stream(f"session {half}"), session) for half in ("high", "low")))
    columns = {
        "event_time": numbers(second * 1_000_000, pa.timestamp("us")),
        "event_type": words(events.kind, pa.array(EVENT_TYPES)),
        "product_id": numbers(product_id),
        "category_id": numbers(category_id),
        "category_code": words(xp.maximum(code, 0), pa.array(CODES), code >= 0),
        "brand": words(xp.maximum(brand, 0), _brands(), brand >= 0),
        "price": numbers(_price(xp, world, second, place, cents, events)),
        "user_id": numbers(world.visitors(xp, events.session)),
        "user_session": letters(identity),
    }
    return pa.table(columns)


def _users(world: World, bits: Array) -> Array:
    """Return a user per draw, the n-th as often as n^-0.5: the square of an even number in [0, 1) says which."""
    even = bits >> np.uint64(32)
    number = (((even * even) >> np.uint64(32)) * np.uint64(world.users)) >> np.uint64(32)
    return draws.scramble(number, max(26, world.users.bit_length()), stream("user")).view(np.int64) + 512_000_000


def _price(xp: ModuleType, world: World, second: Array, place: Array, cents: Array, events: Events) -> Array:
    """Base price changed by -5 .. 5 % for the week; 0 where the price was lost, for an event and its copies alike."""
    week = (second // (7 * 86400)).view(np.uint64)
    percent = 95 + below(draw(stream("price"), place.view(np.uint64) * np.uint64(4096) + week), 11)
    cents = xp.minimum(cents * percent // 100, LARGEST_PRICE)
    lost = field(draw(world.stream("price"), events.product.view(np.uint64)), 0) < ZERO_PRICE
    return xp.where(lost, 0, cents) / 100.0


@cache
def _brands() -> pa.Array:
    return pa.array(brands(BRANDS))
