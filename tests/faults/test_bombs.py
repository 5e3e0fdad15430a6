"""Small files that promise, or decompress to, more than memory holds: refused by an error that names the setting."""

from __future__ import annotations

import bz2
import copy
import gzip
import io
import lzma
import os
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import fastavro
import numpy as np
import pyarrow as pa
import pytest

from tasks.core.settings import Source
from tasks.errors import DataError
from tasks.sources.planning import make_plan
from tasks.sources.reader import read
from tests.conftest import python_path

MARKER = b"0123456789abcdef"


def varint(number: int) -> bytes:
    number, out = number << 1, b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def avro_of(kind: object, body: bytes, records: int, codec: str = "null") -> bytes:
    """An Avro file of one block with these bytes as its records."""
    whole = io.BytesIO()
    fastavro.writer(whole, {"type": "record", "name": "row", "fields": [{"name": "a", "type": kind}]}, [],
                    codec, sync_marker=MARKER)  # fmt: skip
    block = varint(records) + varint(len(body)) + body + MARKER
    return whole.getvalue() + block


def records_of_no_bytes(folder: Path) -> Path:
    path = folder / "rows.avro"
    path.write_bytes(avro_of("null", b"", 2**40))
    assert path.stat().st_size < 160
    return path


def list_of_nulls(folder: Path) -> Path:
    path = folder / "rows.avro"
    path.write_bytes(avro_of({"type": "array", "items": "null"}, varint(2**40) + b"\0", 1))
    return path


def deflated_zeros(folder: Path) -> Path:
    path, packing = folder / "rows.avro", zlib.compressobj(9, zlib.DEFLATED, -15)
    zeros = packing.compress(bytes(2**20)) + packing.flush(zlib.Z_FULL_FLUSH)
    length = varint(640 * 2**20)
    first = zlib.compressobj(9, zlib.DEFLATED, -15)
    body = first.compress(length) + first.flush(zlib.Z_FULL_FLUSH) + zeros * 640 + packing.flush()
    path.write_bytes(avro_of("bytes", body, 1, "deflate"))
    return path


def gzipped_lines(folder: Path) -> Path:
    path = folder / "rows.csv.gz"
    path.write_bytes(gzip.compress(b"a,b\n") + gzip.compress(b"1,2\n" * 2**18) * 640)
    return path


def zipped_lines(folder: Path) -> Path:
    path = folder / "rows.csv"  # without the suffix of a zip file
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("00.csv", b"a,b\n" + b"1,2\n" * 2**21)
        (first,), file = archive.filelist, archive.fp
        assert file is not None
        file.flush()
        packed = path.read_bytes()
        for number in range(1, 80):  # the same bytes under other names: they are compressed once
            other = copy.copy(first)
            other.filename, other.header_offset = f"{number:02}.csv", file.tell()
            file.write(packed.replace(b"00.csv", other.filename.encode(), 1))
            archive.filelist.append(other)
        archive.start_dir = file.tell()
    with zipfile.ZipFile(path) as archive:
        assert sum(info.file_size for info in archive.infolist()) > 640 * 2**20
        assert len(archive.read("79.csv")) == first.file_size
    return path


def one_long_line(folder: Path) -> Path:
    path = folder / "rows.csv"
    path.write_bytes(b"a,b\n1,2\n1," + b"2" * 40 * 2**20 + b"\n")
    return path


def one_long_header(folder: Path) -> Path:
    path = folder / "rows.csv"
    path.write_bytes(b"," * 40 * 2**20 + b"\n1,2\n")
    return path


def long_quoted_value(folder: Path) -> Path:
    path = folder / "rows.csv"
    path.write_bytes(b'a,b\n1,"' + b"2\n" * 20 * 2**20 + b'"\n')
    return path


def one_long_object(folder: Path) -> Path:
    path = folder / "rows.jsonl"
    path.write_bytes(b'{"a": "x"}\n{"a": "' + b"x" * 40 * 2**20 + b'"}\n')
    return path


def zeros_in_arrow(folder: Path) -> Path:
    path, table = folder / "rows.arrow", pa.table({"x": np.zeros(80_000_000)})
    with pa.ipc.new_file(path, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as file:
        file.write_table(table)
    assert path.stat().st_size < 100_000
    return path


BOMBS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "Avro records of no bytes": (records_of_no_bytes, "source.max_block_bytes"),
    "an Avro list of nulls": (list_of_nulls, "promises 1,099,511,627,776 elements"),
    "zeros in Avro, deflated": (deflated_zeros, "source.max_block_bytes"),
    "lines in gzip": (gzipped_lines, "source.max_block_bytes"),
    "lines in a zip file that is called CSV": (zipped_lines, "source.max_block_bytes"),
    "zeros in Arrow, under zstd": (zeros_in_arrow, "source.max_block_bytes"),
    "a line of 40 MB": (one_long_line, "source.max_record_bytes"),
    "a header of 40 MB": (one_long_header, "source.max_record_bytes"),
    "a quoted value of 40 MB": (long_quoted_value, "source.max_record_bytes"),
    "an object of 40 MB": (one_long_object, "source.max_record_bytes"),
}
READ = """
import os, resource, sys, traceback
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])  # threads of many cores reserve more than the limit
import psutil
from tasks.sources.reader import read
from tasks.errors import DataError
from tasks.sources.planning import make_plan
from tasks.core.settings import Source

def read_bounded(path):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    limit = psutil.Process().memory_info().vms + (3 << 29)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        plan = make_plan(Source(path=path))
        for partition in plan.partitions:
            read(plan, partition)
    except DataError as error:
        print(error)
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024, flush=True)

for line in sys.stdin:
    if os.fork() == 0:
        status = 1
        try:
            read_bounded(line.rstrip())
            status = 0
        except BaseException:
            traceback.print_exc()
        os._exit(status)
    print("status", os.wait()[1], flush=True)
"""


class Reader:
    """A process whose forks read a file each, within a bound on their memory."""

    def __init__(self, log: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": python_path(), "MALLOC_ARENA_MAX": "1"}  # one arena for all threads
        self.log = log
        with log.open("w") as errors:
            # From Python 3.12 on a fork of a process with threads, such as those of NumPy, prints a warning.
            self.process = subprocess.Popen(
                [sys.executable, "-W", "ignore::DeprecationWarning", "-c", READ], env=environment, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            )  # fmt: skip

    def read(self, path: Path) -> tuple[str, int]:
        """The error, and by how many MB the process grew."""
        assert self.process.stdin
        assert self.process.stdout
        print(path, file=self.process.stdin, flush=True)
        lines = lines_of_fork(self.process.stdout)
        assert (lines.pop(), self.log.read_text()) == ("status 0", "")
        megabytes = int(lines.pop())
        return "\n".join(lines), megabytes


def lines_of_fork(lines: Iterable[str]) -> list[str]:
    """The lines up to that with the status of a fork."""
    taken: list[str] = []
    for line in lines:
        taken.append(line.rstrip("\n"))
        if line.startswith("status"):
            break
    return taken


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    made = Reader(tmp_path_factory.mktemp("bombs") / "log.txt")
    with made.process:
        yield made


@pytest.mark.system
@pytest.mark.promise("decoded bytes of what a reader must decode at once")
@pytest.mark.promise("A longer line is an error, before it takes memory")
@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.xdist_group("bombs")
def test_a_bomb_is_refused_before_it_takes_memory(bomb: str, tmp_path: Path, reader: Reader) -> None:
    make, said = BOMBS[bomb]
    path = make(tmp_path)
    message, megabytes = reader.read(path)
    assert said in message
    assert str(path) in message
    assert megabytes < 800


def read_all(source: Source) -> None:
    plan = make_plan(source)
    for partition in plan.partitions:
        read(plan, partition)


def refusal(**source: object) -> str:
    with pytest.raises(DataError) as caught:
        read_all(Source(**source))  # type: ignore[arg-type]
    return str(caught.value)


@pytest.mark.promise("decoded bytes of what a reader must decode at once")
def test_the_bounds_can_be_set(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a,b\n1,2\n1," + "x" * 2000 + "\n")
    rows = make_plan(Source(path=str(path), schema={"b": "string"})).rows
    assert rows == 2
    assert "a record of a text file is longer than 1 KiB" in refusal(path=str(path), max_record_bytes="1KiB")
    packed = tmp_path / "rows.csv.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert "source.max_block_bytes is 1.5 KiB" in refusal(path=str(packed), max_block_bytes=1536)


def test_a_file_of_too_many_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("," * 100_000 + "\n")
    assert "a file has 100,001 columns" in refusal(path=str(path))


@pytest.mark.promise("how deep values are nested (100 levels at most)")
@pytest.mark.parametrize("depth", [900, 200_000])
def test_json_that_is_nested_too_deep_is_refused(depth: int, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n' + '{"a":' * depth + "1" + "}" * depth + "\n")
    assert "a line of JSON is nested more than 100 deep" in refusal(path=str(path))


def test_brackets_in_texts_are_no_nesting(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": "' + "[{" * 1000 + '\\""}\n')
    plan = make_plan(Source(path=str(path)))
    assert read(plan, 0)["a"].to_pylist() == ["[{" * 1000 + '"']


PACKED = {
    "null": bytes, "deflate": lambda data: zlib.compress(data, wbits=-15), "bzip2": bz2.compress, "xz": lzma.compress,
    "bzip2 in two streams": lambda data: bz2.compress(data[:10]) + bz2.compress(data[10:]),
    "xz in two streams": lambda data: lzma.compress(data[:10]) + lzma.compress(data[10:]),
    "zstandard": lambda data: pa.compress(data, "zstd", asbytes=True),
    "snappy": lambda data: pa.compress(data, "snappy", asbytes=True) + zlib.crc32(data).to_bytes(4, "big"),
}  # fmt: skip


@pytest.mark.parametrize("codec", PACKED)
def test_a_block_of_avro_is_decompressed_within_the_bound(codec: str, tmp_path: Path) -> None:
    path, body = tmp_path / "rows.avro", varint(2**16) + bytes(2**16)
    path.write_bytes(avro_of("bytes", PACKED[codec](body), 1, codec.split()[0]))
    read_all(Source(path=str(path), max_block_bytes=len(body)))
    assert "source.max_block_bytes is 64 KiB" in refusal(path=str(path), max_block_bytes=len(body) - 1)


def test_a_codec_of_avro_that_is_not_known_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.avro"
    path.write_bytes(avro_of("int", b"\0\0", 2).replace(b"\x08null", b"\x08zip9"))
    assert "its codec 'zip9' is not known" in refusal(path=str(path))


def test_a_header_of_avro_that_promises_too_much_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.avro"
    for promise, why in ((varint(2**40), "it ends within a value"), (varint(1) + varint(2**40), "1,099,511,627,776")):
        path.write_bytes(b"Obj\x01" + promise)
        assert why in refusal(path=str(path))


def test_avro_records_in_records_without_end_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.avro"
    schema = {"type": "record", "name": "row", "fields": [{"name": "next", "type": ["null", "row"]}]}
    whole = io.BytesIO()
    fastavro.writer(whole, schema, [], sync_marker=MARKER)
    body = b"\x02" * 100_000 + b"\0"
    path.write_bytes(whole.getvalue() + varint(1) + varint(len(body)) + body + MARKER)
    assert "a record is nested more than 100 deep" in refusal(path=str(path))


def test_an_avro_schema_that_is_nested_too_deep_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.avro"
    kind = '{"type":"array","items":' * 20_000 + '"int"' + "}" * 20_000
    schema = ('{"type":"record","name":"row","fields":[{"name":"a","type":' + kind + "}]}").encode()
    path.write_bytes(
        b"Obj\x01" + varint(1) + varint(11) + b"avro.schema" + varint(len(schema)) + schema + b"\0" + MARKER
    )
    assert "its schema is nested more than 100 deep" in refusal(path=str(path))
