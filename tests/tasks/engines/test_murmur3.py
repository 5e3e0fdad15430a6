"""MurmurHash3_x86_32: published vectors, the rule of canonical bytes, and the reference in plain Python beside it."""

from __future__ import annotations

import datetime
import decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.engines.hashing.murmur3 import NULL_HASH, hash_array, hash_fixed, hash_strings, hash_words
from tasks.errors import JobError
from tests.frames import make_column

MASK = 0xFFFFFFFF


def reference(data: bytes, seed: int = 0) -> int:
    """Appleby's function, word by word in Python integers."""

    def rotate(x: int, bits: int) -> int:
        return ((x << bits) | (x >> (32 - bits))) & MASK

    def scramble(k: int) -> int:
        return rotate(k * 0xCC9E2D51 & MASK, 15) * 0x1B873593 & MASK

    h, body = seed, len(data) // 4 * 4
    for at in range(0, body, 4):
        h = rotate(h ^ scramble(int.from_bytes(data[at : at + 4], "little")), 13) * 5 + 0xE6546B64 & MASK
    h ^= scramble(int.from_bytes(data[body:], "little")) ^ len(data)
    h = (h ^ h >> 16) * 0x85EBCA6B & MASK
    h = (h ^ h >> 13) * 0xC2B2AE35 & MASK
    return h ^ h >> 16


def hashes(values: object, dtype: pa.DataType | None, engine: str, seed: int = 0) -> list[int]:
    array = values if isinstance(values, pa.Array) else pa.array(values, dtype)
    if engine == "cudf":
        from tasks.engines.gpu.kernels.canonical_cudf import hash_series  # needs a GPU

        return hash_series(make_column(array, engine=engine), seed, array.type).tolist()
    return hash_array(array, seed).tolist()


PUBLISHED = [
    (b"", 0, 0x00000000),
    (b"", 1, 0x514E28B7),
    (b"", 0xFFFFFFFF, 0x81F16F39),
    (b"\xff\xff\xff\xff", 0, 0x76293B50),
    (b"\x21\x43\x65\x87", 0, 0xF55B516B),
    (b"\x21\x43\x65\x87", 0x5082EDEE, 0x2362F9DE),
    (b"\x21\x43\x65", 0, 0x7E4A8634),
    (b"\x21\x43", 0, 0xA0F7B07A),
    (b"\x21", 0, 0x72661CF4),
    (b"\x00\x00\x00\x00", 0, 0x2362F9DE),
    (b"\x00\x00\x00", 0, 0x85F0B427),
    (b"\x00\x00", 0, 0x30F4C306),
    (b"\x00", 0, 0x514E28B7),
    (b"aaaa", 0x9747B28C, 0x5A97808A),
    (b"aaa", 0x9747B28C, 0x283E0130),
    (b"aa", 0x9747B28C, 0x5D211726),
    (b"a", 0x9747B28C, 0x7FA09EA6),
    (b"abcd", 0x9747B28C, 0xF0478627),
    (b"Hello, world!", 0x9747B28C, 0x24884CBA),
    ("ππππππππ".encode(), 0x9747B28C, 0xD58063C1),
    (b"a" * 256, 0x9747B28C, 0x37405BDC),
    (b"The quick brown fox jumps over the lazy dog", 0x9747B28C, 0x2FA826CD),
]


@pytest.mark.promise("one MurmurHash3 for CPU, GPU and every version; null has a bucket")
@pytest.mark.parametrize(("data", "seed", "expected"), PUBLISHED)
def test_published_vectors(data, seed, expected):
    assert hash_strings(pa.array([data], pa.binary()), seed).tolist() == [expected]
    assert reference(data, seed) == expected


@pytest.mark.promise("one MurmurHash3 for CPU, GPU and every version; null has a bucket")
def test_pinned_values(engine):
    assert hashes([10, None], pa.int64(), engine) == [4004982076, 0xFFFFFFFF]
    assert hashes(["", None, "abc"], pa.string(), engine) == [0, 0xFFFFFFFF, 0xB3DD93FA]


def test_a_number_has_one_hash_whatever_its_storage(engine):
    for dtype in (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()):
        assert hashes([10, None], dtype, engine) == [4004982076, NULL_HASH]
    assert hashes([True, False], pa.bool_(), engine) == hashes([1, 0], pa.int64(), engine)
    assert hashes([1.5, 0.0], pa.float32(), engine) == hashes([1.5, -0.0], pa.float64(), engine)
    assert hashes([2**64 - 1], pa.uint64(), engine) == hashes([-1], pa.int64(), engine)


def test_floats_are_their_eight_bytes_and_nan_is_null(engine):
    assert hashes([2.5], pa.float64(), engine) == [reference(np.float64(2.5).tobytes())]
    assert hashes([float("nan"), None, 0.0], pa.float64(), engine) == [NULL_HASH, NULL_HASH, reference(bytes(8))]


def test_times_are_microseconds_and_dates_are_days(engine):
    expected = hashes([1_000_000, -1, None], pa.int64(), engine)
    assert hashes([1_000_000, -1, None], pa.timestamp("us"), engine) == expected
    assert hashes([1_000_000_000, -1, None], pa.timestamp("ns"), engine) == expected
    assert hashes([1, None], pa.timestamp("s"), engine) == [expected[0], NULL_HASH]
    assert hashes([1000], pa.timestamp("ms", "UTC"), engine) == expected[:1]
    assert hashes([datetime.date(1970, 1, 11)], pa.date32(), engine) == [4004982076]


def test_decimals_are_their_text(engine):
    values = [decimal.Decimal("1.50"), decimal.Decimal("-0.01"), None]
    expected = [reference(b"1.50"), reference(b"-0.01"), NULL_HASH]
    assert hashes(values, pa.decimal128(10, 2), engine) == expected
    small = [decimal.Decimal("0.0000000001"), decimal.Decimal("0.0000000000")]
    expected = [reference(b"0.0000000001"), reference(b"0.0000000000")]
    assert hashes(small, pa.decimal128(18, 10), engine) == expected


def test_a_dictionary_hashes_as_its_values():
    plain = pa.array(["x", None, "a long text of many words", "x"])
    assert hash_array(plain.dictionary_encode()).tolist() == hash_array(plain).tolist()
    numbers = pa.array([7, None, 7]).dictionary_encode()
    assert hash_array(numbers).tolist() == hash_array(pa.array([7, None, 7])).tolist()
    empty = pa.DictionaryArray.from_arrays(pa.array([None, None], pa.int32()), pa.array([], pa.string()))
    assert hash_array(empty).tolist() == [NULL_HASH, NULL_HASH]


def test_layouts_slices_and_chunks_do_not_matter():
    values = ["é" * (n % 11) if n % 7 else None for n in range(1000)]
    plain = pa.array(values)
    expected = [NULL_HASH if v is None else reference(v.encode()) for v in values]
    for dtype in (pa.string(), pa.large_string(), pa.string_view()):
        assert hash_array(plain.cast(dtype)).tolist() == expected
    assert hash_array(plain[13:700]).tolist() == expected[13:700]
    assert hash_array(pa.chunked_array([plain[:5], plain[5:5], plain[5:]])).tolist() == expected
    assert hash_array(pa.array(range(1000))[990:]).tolist() == hash_array(pa.array(range(990, 1000))).tolist()
    assert hash_array(pa.array([True, False, True])[1:]).tolist() == hash_array(pa.array([0, 1])).tolist()


@pytest.mark.parametrize("dtype", [pa.string(), pa.int64(), pa.float64(), pa.bool_(), pa.timestamp("us")])
def test_empty_and_all_null_columns(dtype, engine):
    assert hashes([], dtype, engine) == []
    assert hashes([None, None], dtype, engine) == [NULL_HASH, NULL_HASH]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    ("dtype", "one", "signalling"),
    [(pa.float64(), 0x3FF0 << 48, 0x7FF0 << 48 | 1), (pa.float32(), 0x3F80_0000, 0x7F80_0001),
     (pa.float16(), 0x3C00, 0x7C01)],
)  # fmt: skip
def test_any_bits_may_lie_in_the_place_of_a_null(dtype, one, signalling, whole):
    """A signalling NaN, of which numpy warns: columns from a GPU have there what its memory had."""
    bits = np.array([one, signalling], f"u{dtype.bit_width // 8}")
    column = pa.Array.from_buffers(dtype, 2, [pa.py_buffer(b"\x01"), pa.py_buffer(bits)])
    assert column.to_pylist() == [1.0, None]
    assert hash_array(column, whole=whole).tolist() == hash_array(pa.array([1.0, None]), whole=whole).tolist()


def test_a_column_of_type_null_is_all_null():
    assert hash_array(pa.nulls(2)).tolist() == [NULL_HASH, NULL_HASH]


def test_lists_are_refused():
    with pytest.raises(JobError, match="cannot be hashed"):
        hash_array(pa.array([[1, 2]]))


def test_several_columns_are_the_hash_of_their_hashes(xp):
    columns = [xp.asarray([1, 2**32 - 1], dtype=xp.uint32), xp.asarray([3, 0], dtype=xp.uint32)]
    expected = [reference(b"\1\0\0\0\3\0\0\0"), reference(b"\xff\xff\xff\xff\0\0\0\0")]
    assert hash_words(columns, 0, xp).tolist() == expected
    assert hash_words(columns[:1], 0, xp).tolist() == [reference(b"\1\0\0\0"), reference(b"\xff\xff\xff\xff")]
    assert columns[0].tolist() == [1, 2**32 - 1]


def test_fixed_items_of_many_blocks_and_seeds(xp):
    rows = 20_000
    got = hash_fixed(xp.arange(rows, dtype=xp.uint64), 42, xp)
    assert got.dtype == xp.uint32
    assert [int(got[row]) for row in (0, 8191, 8192, rows - 1)] == [
        reference(row.to_bytes(8, "little"), 42) for row in (0, 8191, 8192, rows - 1)
    ]
    assert hash_fixed(xp.arange(0, dtype=xp.uint64), 42, xp).tolist() == []


def test_one_very_long_text_among_short_ones(engine):
    values = ["ab", "x" * 1_000_003, "", "ab"]
    assert hashes(values, pa.string(), engine) == [reference(v.encode()) for v in values]


@given(st.lists(st.none() | st.text(max_size=40)), st.integers(0, MASK))
def test_any_texts_hash_as_the_reference(engine, values, seed):
    expected = [NULL_HASH if value is None else reference(value.encode(), seed) for value in values]
    assert hashes(values, pa.string(), engine, seed) == expected


@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)), st.integers(0, MASK))
def test_any_integers_hash_as_the_reference(engine, values, seed):
    expected = [NULL_HASH if v is None else reference(v.to_bytes(8, "little", signed=True), seed) for v in values]
    assert hashes(values, pa.int64(), engine, seed) == expected
