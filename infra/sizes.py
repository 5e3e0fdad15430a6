"""Sizes as people write them: 16GB, 64GiB, or a part of the whole."""

from __future__ import annotations

from typing import Annotated

from dask.utils import parse_bytes
from pydantic import AfterValidator, BeforeValidator


def _text(value: object) -> object:
    """Numbers of a YAML file as text: the form has one text field for `8GB` and for `0.5`."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def size_in_bytes(size: str, total: int) -> int:
    """Bytes of `8GB` or a number of bytes; a number up to 1 is a part of `total`, never one byte.

    >>> size_in_bytes("8GB", 0), size_in_bytes("0.5", 1000), size_in_bytes("1", 1000)
    (8000000000, 500, 1000)
    """
    try:
        number = float(size)
    except ValueError:
        return int(parse_bytes(size))
    return int(number * total) if number <= 1 else int(number)


def size_or_part(size: str) -> int | float:
    """Bytes, or the part as a float, for hosts whose whole is not known here.

    >>> size_or_part("8GB"), size_or_part("0.5"), size_or_part("1")
    (8000000000, 0.5, 1.0)
    """
    try:
        part = float(size)
    except ValueError:
        return int(parse_bytes(size))
    return part if part <= 1 else int(part)


def _is_size(size: str | None) -> str | None:
    try:
        sensible = size is None or size_in_bytes(size, 2**40) > 0
    except ValueError:
        sensible = False
    if not sensible:
        raise ValueError(f"{size!r} is not a size: write 8GB, 64GiB, or a part of the whole such as 0.5")
    return size


Size = Annotated[
    str | None, BeforeValidator(_text, json_schema_input_type=str | float | None), AfterValidator(_is_size)
]


def _is_amount(size: str) -> str:
    try:
        amount = int(parse_bytes(size))
    except ValueError:
        amount = 0
    if amount <= 1:
        raise ValueError(f"{size!r} is not an amount of memory: write 16GB, 64GiB")
    return size


# A size that cannot be a share, since the job requests the memory of which it would be a share.
Amount = Annotated[str, BeforeValidator(_text, json_schema_input_type=str | float), AfterValidator(_is_amount)]
