"""The signature of a text that rowmill writes: a comment as its last line, with the sha256 of all before it."""

from __future__ import annotations

import hashlib
import re
from typing import IO

SIGNATURE = re.compile(rb"(<!--|#) written by rowmill, sha256 ([0-9a-f]{64})( -->)?\n")


def add_signature(data: bytes, opening: bytes = b"#", closing: bytes = b"") -> bytes:
    """Add a last line to the bytes of a text, a comment with their sha256, by which a later run knows its file.

    >>> add_signature(b"a 1\\n")[:37]
    b'a 1\\n# written by rowmill, sha256 6a03'
    """
    digest = hashlib.sha256(data).hexdigest().encode()
    return data + b"%b written by rowmill, sha256 %b%b\n" % (opening, digest, closing)


def is_signed(file: IO[bytes]) -> bool:
    """Whether an open file is one of `add_signature`, and was not changed since."""
    data = file.read()
    start = data.rfind(b"\n", 0, max(len(data) - 1, 0)) + 1
    signature = SIGNATURE.fullmatch(data, start)
    return signature is not None and hashlib.sha256(data[:start]).hexdigest().encode() == signature[2]
