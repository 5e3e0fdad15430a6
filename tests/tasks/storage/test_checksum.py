"""A file that is digested while it is written."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import xxhash

from tasks.storage.checksum import DigestedFile


@pytest.mark.promise("every part with rows, bytes and checksum (xxh3-128)")
def test_the_digest_is_that_of_what_stands_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "part"

    with DigestedFile(path) as file:
        file.write(b"abc")
        file.write(memoryview(b"de"))
        assert file.tell() == 5

    assert path.read_bytes() == b"abcde"
    assert file.finish() == xxhash.xxh3_128(b"abcde").hexdigest()


def test_a_full_disk_is_told_at_the_end_since_the_writer_cannot_hear_of_it() -> None:
    file = DigestedFile("/dev/full")

    assert file.write(b"abc") == 3
    assert file.write(b"de") == 2

    with pytest.raises(OSError, match="No space left") as caught:
        file.finish()
    assert caught.value.errno == errno.ENOSPC
