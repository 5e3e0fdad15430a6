"""Where the records of a text file end: counted in ranges that know nothing of each other, joined by prefix.

A line end inside quotes ends no record, and whether a range begins inside quotes is known only when everything before
it has been read. So each range is counted for both possibilities, and a walk over the ranges picks. Quotes count as the
CSV parser sees them: one opens at the beginning of a field, two inside quotes stand for one, any other is a letter.
Counting by the parity of quotes is exact as long as every opening quote follows a delimiter, a line end or the quote it
doubles; where that does not hold for the state a range really begins in, the range is counted again quote by quote.
Empty lines are not records, as the parser skips them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

NEWLINE = 10
RETURN = 13
NO_BYTE = 256
CHUNK = 2**20
BLANKS = (ord("\t"), ord(" "))


@dataclass(frozen=True)
class Dialect:
    """How records are written: the delimiter of quoted text; none for JSON lines, where every line feed ends
    a record.

    `quote` is empty where no character quotes. The character behind `escape` stands for itself; a record that begins
    with `comment` is none. `skip_space`: spaces behind a delimiter belong to it. `blank`: an empty line is a record, as
    in a file of one column.
    """

    delimiter: str | None = ","
    quote: str = '"'
    escape: str | None = None
    comment: str | None = None
    skip_space: bool = False
    blank: bool = False

    @property
    def quoted(self) -> bool:
        return self.delimiter is not None

    @property
    def in_order(self) -> bool:
        """Whether records can only be followed from the beginning of a file: quotes in comments and behind escapes are
        letters, and more than the byte before a quote says whether it opens, so that their parity says nothing of a
        range in the middle."""
        return self.escape is not None or self.comment is not None or (bool(self.quote) and self.is_rewritten)

    @property
    def is_rewritten(self) -> bool:
        """Whether a parser that knows delimiters of one byte needs another one in their place."""
        return self.skip_space or len((self.delimiter or "").encode()) > 1

    @property
    def quote_code(self) -> int:
        """The byte that quotes; a number that no byte has where none does."""
        return ord(self.quote) if self.quoted and self.quote else NO_BYTE

    @property
    def openers(self) -> tuple[int, int, int]:
        """The bytes after which a quote opens."""
        return (self.delimiter or ",").encode()[-1], NEWLINE, RETURN


@dataclass(frozen=True)
class Ends:
    """The record ends of a range for one state at its beginning.

    `records` counts the ends of non-empty records, `first` is the offset behind the first end (-1: none), and
    `first_record` says whether that end is counted. `inside` and `closed` are the state behind the range: inside
    quotes, or just behind a closing quote. `letters` says that letters follow a closing quote, which may have been
    meant to open another value.
    """

    records: int
    first: int
    first_record: bool
    inside: bool
    closed: bool
    letters: bool = False


Scan = tuple[Ends | None, Ends | None]


def scan(data: bytes, low: int, high: int, dialect: Dialect) -> Scan:
    """Record ends in data[low:high] if it begins outside and if it begins inside quotes; None where parity cannot tell.

    The bytes around the range, two before and one behind it where the file has them, must be in `data` too; data[0]
    with low = 0 is the beginning of the text.
    """
    quotes = _has(data, low, high, dialect.quote_code)
    if not quotes and data.find(b"\r", max(low - 2, 0), high) < 0:
        inside = Ends(0, -1, False, True, False) if dialect.quoted else None
        return _plain_ends(data, low, high, dialect.blank), inside
    sides = (_SideOfRange(), _SideOfRange())  # begun outside quotes, and inside
    odd = False  # an odd number of quotes so far
    for at in range(low, high, CHUNK):
        odd = _count(data, low, at, min(at + CHUNK, high), dialect, odd, sides)
    sides[0].can_tell &= not (quotes and _after_quote(data, low, dialect))
    sides[1].can_tell &= dialect.quoted
    ends_in_quote = quotes and data[high - 1] == dialect.quote_code
    begun_outside, begun_inside = (
        Ends(side.records, side.first, side.first_record, inside, ends_in_quote and not inside, side.letters)
        if side.can_tell
        else None
        for side, inside in zip(sides, (odd, not odd), strict=True)
    )
    return begun_outside, begun_inside


@dataclass
class _SideOfRange:
    """The counts of a range for one state at its beginning; `can_tell`: parity is right, since all quotes are legal."""

    records: int = 0
    first: int = -1
    first_record: bool = False
    can_tell: bool = True
    letters: bool = False


def _count(
    data: bytes, low: int, start: int, stop: int, dialect: Dialect, odd: bool, sides: tuple[_SideOfRange, _SideOfRange]
) -> bool:
    """Add bytes [start, stop) of the range from `low` on; whether the number of quotes in the range is odd then.

    64 bytes are the bits of a word, one word for each kind of byte; the two bytes before the first are there too.
    """
    window = _window(data, start - 2, stop + 1)
    quote, newline, carriage = (_bits(window, byte) for byte in (dialect.quote_code, NEWLINE, RETURN))
    here = _places(len(window), 2, 2 + stop - start)
    ends = newline
    before = _next(newline)
    if dialect.quoted:
        ends = newline | (carriage & ~_previous(newline))
        before = before | _next(carriage)
    pair = newline & _next(carriage)
    empty = ends & ~ends if dialect.blank else (pair & _next(before)) | (before & ~pair)
    ends = ends & here
    if not dialect.quoted:
        _add(sides[0], ends, empty, start - low)
        return False
    delimiter = _bits(window, dialect.openers[0])
    legal = before | _next(delimiter) | _next(quote if start > low else quote & here)
    behind = _previous(delimiter | newline | carriage | quote)
    quote &= here
    known = window[: stop + 1 - (start - 2)] if stop < len(data) else window  # zeros are behind the end of a text
    parity, odd_after = _parities(quote, odd)
    for side, outside in zip(sides, (~parity, parity), strict=True):
        side.can_tell &= not (quote & ~outside & ~legal).any()
        side.letters |= side.can_tell and _letters(known, _places_of(quote & outside & ~behind) + 1, dialect)
        _add(side, ends & outside, empty, start - low)
    return odd_after


def _places_of(bits: np.ndarray) -> np.ndarray:
    """The places of the bits that are set."""
    if not bits.any():
        return np.empty(0, np.int64)
    return np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little"))


def _letters(text: np.ndarray, places: np.ndarray, dialect: Dialect) -> bool:
    """Whether anything but blanks before a delimiter or a line end may stand at one of the places, which are behind
    closing quotes; yes where the text ends in the middle of blanks."""
    ends = (*dialect.openers, 0)
    while len(places):
        if places[-1] >= len(text):
            return True
        following = text[places]
        is_blank = np.isin(following, BLANKS) & ~np.isin(following, ends)
        if not np.isin(following[~is_blank], ends).all():
            return True
        places = places[is_blank] + 1
    return False


def _add(side: _SideOfRange, ends: np.ndarray, empty: np.ndarray, offset: int) -> None:
    """Add record ends of a window that begins two bytes before `offset`."""
    side.records += int(np.bitwise_count(ends & ~empty).sum())
    if side.first < 0 and len(words := np.flatnonzero(ends)):
        word = int(words[0])
        bit = (int(ends[word]) & -int(ends[word])).bit_length() - 1
        side.first = offset - 2 + 64 * word + bit + 1
        side.first_record = not int(empty[word]) >> bit & 1


def _window(data: bytes, start: int, stop: int) -> np.ndarray:
    """data[start:stop] in whole words: line feeds before the beginning of the text, zeros behind its end."""
    window = np.zeros(-(-(stop - start) // 64) * 64, np.uint8)
    window[: max(-start, 0)] = NEWLINE
    inside = np.frombuffer(data, np.uint8)[max(start, 0) : stop]
    window[max(-start, 0) :][: len(inside)] = inside
    return window


def _places(length: int, start: int, stop: int) -> np.ndarray:
    """The bits of places [start, stop)."""
    mask = np.zeros(length, bool)
    mask[start:stop] = True
    return np.packbits(mask, bitorder="little").view(np.uint64)


def _bits(window: np.ndarray, byte: int) -> np.ndarray:
    """The positions of a byte in the window, as bits of words."""
    return np.packbits(window == byte, bitorder="little").view(np.uint64)


def _next(bits: np.ndarray) -> np.ndarray:
    """Each bit one place further on."""
    moved = bits << np.uint64(1)
    moved[1:] |= bits[:-1] >> np.uint64(63)
    return moved


def _previous(bits: np.ndarray) -> np.ndarray:
    """Each bit one place further back."""
    moved = bits >> np.uint64(1)
    moved[:-1] |= bits[1:] << np.uint64(63)
    return moved


def _parities(bits: np.ndarray, odd: bool) -> tuple[np.ndarray, bool]:
    """(at each place whether the number of bits up to it is odd, the same of all); `odd`: of those before."""
    parities = bits
    for step in (1, 2, 4, 8, 16, 32):
        parities = parities ^ (parities << np.uint64(step))
    whole = np.bitwise_xor.accumulate((parities >> np.uint64(63)).astype(np.uint8)) ^ np.uint8(odd)
    begun = np.concatenate([np.array([odd], np.uint8), whole[:-1]])
    return parities ^ (np.uint64(0) - begun.astype(np.uint64)), bool(whole[-1])


def scan_exactly(data: bytes, low: int, high: int, dialect: Dialect, inside: bool, closed: bool) -> Ends:
    """Record ends in data[low:high] for a known state at its beginning, quote by quote."""
    quotes = _positions(data, low, high, dialect.quote_code)
    ends, empty = _line_ends(data, low, high, dialect)
    true_quotes = _true_quotes(quotes, _opens(data, low, quotes, dialect), inside, closed)
    closing = true_quotes[0 if inside else 1 :: 2] + low + 1
    text = np.frombuffer(data, np.uint8)
    closing = closing[closing < len(data)]
    letters = _letters(text, closing[text[closing] != dialect.quote_code], dialect)
    return replace(_ends(ends, empty, true_quotes, int(inside), high - low), letters=letters)


def _true_quotes(quotes: np.ndarray, opens: np.ndarray, inside: bool, closed: bool) -> np.ndarray:
    """The quotes that open or close; those in the middle of an unquoted field are letters."""
    true_quotes = []
    last_closed = -1 if closed else -2
    for position, can_open in zip(quotes.tolist(), opens.tolist(), strict=True):
        if inside:
            inside = False
            last_closed = position
        elif can_open or last_closed == position - 1:
            inside = True
        else:
            continue
        true_quotes.append(position)
    return np.array(true_quotes, np.int64)


def _ends(ends: np.ndarray, empty: np.ndarray, quotes: np.ndarray, inside: int, length: int) -> Ends:
    outside = ((np.searchsorted(quotes, ends) + inside) & 1) == 0 if len(quotes) or inside else np.ones(len(ends), bool)
    first = int(np.argmax(outside)) if outside.any() else -1
    after = (len(quotes) + inside) % 2 == 1
    return Ends(
        records=int(np.count_nonzero(outside & ~empty)),
        first=int(ends[first]) + 1 if first >= 0 else -1,
        first_record=bool(first >= 0 and not empty[first]),
        inside=after,
        closed=bool(len(quotes) and quotes[-1] == length - 1 and not after),
    )


def _has(data: bytes, low: int, high: int, byte: int) -> bool:
    return byte != NO_BYTE and data.find(bytes([byte]), low, high) >= 0


def _positions(data: bytes, low: int, high: int, byte: int) -> np.ndarray:
    """Offsets from `low` of a byte in data[low:high]."""
    if not _has(data, low, high, byte):
        return np.empty(0, np.int64)
    array = np.frombuffer(data, np.uint8)
    positions = [
        np.flatnonzero(array[at : min(at + CHUNK, high)] == byte) + (at - low) for at in range(low, high, CHUNK)
    ]
    return np.concatenate(positions)


def _before(data: bytes, low: int, positions: np.ndarray) -> np.ndarray:
    """The byte before each position; a line feed before the beginning of the text."""
    index = positions + low - 1
    values = np.frombuffer(data, np.uint8)[np.maximum(index, 0)]
    return np.where(index < 0, np.uint8(NEWLINE), values)


def _opens(data: bytes, low: int, quotes: np.ndarray, dialect: Dialect) -> np.ndarray:
    before = _before(data, low, quotes)
    delimiter, newline, carriage = dialect.openers
    return (before == delimiter) | (before == newline) | (before == carriage)


def _after_quote(data: bytes, low: int, dialect: Dialect) -> bool:
    """Whether the range begins with a quote right behind one of the range before: perhaps a doubled quote, cut in
    two."""
    return low > 0 and data[low - 1 : low + 1] == 2 * dialect.quote.encode()


def _line_ends(data: bytes, low: int, high: int, dialect: Dialect) -> tuple[np.ndarray, np.ndarray]:
    """Offsets of line ends (LF, CR LF at its LF, CR alone in quoted dialects) and whether the line is empty."""
    ends = _positions(data, low, high, NEWLINE)
    if dialect.quoted and len(returns := _positions(data, low, high, RETURN)):
        following = returns + low + 1
        array = np.frombuffer(data, np.uint8)
        alone = (following >= len(data)) | (array[np.minimum(following, len(data) - 1)] != NEWLINE)
        if alone.any():
            ends = np.sort(np.concatenate([ends, returns[alone]]))
    before = _before(data, low, ends)
    pair = (before == RETURN) & (np.frombuffer(data, np.uint8)[ends + low] == NEWLINE)
    before = np.where(pair, _before(data, low, ends - pair), before)
    if dialect.blank:
        return ends, np.zeros(len(ends), bool)
    return ends, (before == NEWLINE) | ((before == RETURN) if dialect.quoted else False)


def _plain_ends(data: bytes, low: int, high: int, blank: bool) -> Ends:
    """Record ends of a range with neither quotes nor carriage returns, begun outside quotes."""
    first = data.find(b"\n", low, high)
    if first < 0:
        return Ends(0, -1, False, False, False)
    if blank:
        return Ends(data.count(b"\n", low, high), first - low + 1, True, False, False)
    first_record = first > 0 and data[first - 1] != NEWLINE
    records = int(first_record)
    array = np.frombuffer(data, np.uint8)
    for at in range(first + 1, high, CHUNK):
        lines = array[at - 1 : min(at + CHUNK, high)] == NEWLINE
        records += int(np.count_nonzero(lines[1:])) - int(np.count_nonzero(lines[1:] & lines[:-1]))
    return Ends(records, first - low + 1, first_record, False, False)


@dataclass(frozen=True)
class Cut:
    """Records in bytes [start, stop) of a text; `suspicious` if a quote among them may be open where none should be, or
    if one may be the header again."""

    start: int
    stop: int
    records: int
    suspicious: bool = False


def join(
    ranges: Sequence[tuple[int, int]],
    scans: Sequence[Scan],
    exactly: Callable[[int, bool, bool], Ends],
    last_line_open: bool,
    suspects: Sequence[bool] = (),
) -> list[Cut]:
    """The ranges of one text moved to record ends, with the records between them.

    A cut is the first record end of each range but the first; a range without an end joins the one before.
    `exactly(number, inside, closed)` counts a range again where parity could not tell; `last_line_open` says that no
    line end closes the text. `suspects` are the ranges in which something suspicious begins.
    """
    inside = closed = suspicious = False
    start = ranges[0][0]
    records = 0
    cuts = []
    for number, ((low, _), ends_by_state) in enumerate(zip(ranges, scans, strict=True)):
        ends = ends_by_state[int(inside)] or exactly(number, inside, closed)
        is_suspect = ends.letters or (bool(suspects) and suspects[number])
        suspicious |= is_suspect
        if number and ends.first >= 0:
            cuts.append(Cut(start, low + ends.first, records + ends.first_record, suspicious))
            start = low + ends.first
            records = ends.records - ends.first_record
            suspicious = is_suspect
        else:
            records += ends.records
        inside = ends.inside
        closed = ends.closed
    cuts.append(Cut(start, ranges[-1][1], records + (last_line_open or inside), suspicious or inside))
    return [cut for cut in cuts if cut.records]


def cut_text(data: bytes, start: int, dialect: Dialect, range_bytes: int) -> list[Cut]:
    """The records of a whole text in memory from `start` on, which is the beginning of a record."""
    if start >= len(data):
        return []
    ranges = range_list(start, len(data), range_bytes)
    scans = [scan(data, low, high, dialect) for low, high in ranges]

    def exactly(number: int, inside: bool, closed: bool) -> Ends:
        return scan_exactly(data, *ranges[number], dialect, inside, closed)

    return join(ranges, scans, exactly, is_open(data[-1:], dialect))


def is_open(last: bytes, dialect: Dialect) -> bool:
    """Whether a text with this last byte lacks the line end of its last record."""
    return last not in ((b"\n", b"\r") if dialect.quoted else (b"\n",))


def range_list(start: int, stop: int, range_bytes: int) -> list[tuple[int, int]]:
    """[start, stop) cut at the multiples of `range_bytes`."""
    edges = [start, *range((start // range_bytes + 1) * range_bytes, stop, range_bytes), stop]
    return list(pairwise(edges))
