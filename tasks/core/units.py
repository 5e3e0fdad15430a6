"""Numbers with their units as text: bytes, rows, rates."""

from __future__ import annotations


def amount(nbytes: float) -> str:
    """Bytes in the unit a person reads.

    >>> amount(1_234_567), amount(0)
    ('1.2 MB', '0 B')
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if nbytes < 1000 or unit == "TB":
            return f"{nbytes:,.0f} {unit}" if unit == "B" else f"{nbytes:,.1f} {unit}"
        nbytes /= 1000
    raise AssertionError


def rate(rows: float, seconds: float) -> str:
    return f"{rows / seconds:,.0f} rows/s" if seconds > 0 else "-"


def megabytes(nbytes: float) -> str:
    """Bytes in the unit that says them shortest.

    >>> megabytes(3_200_000), megabytes(12_340_000_000), megabytes(9_900)
    ('3 MB', '12.3 GB', '10 kB')
    """
    if nbytes >= 10**9:
        return f"{nbytes / 1e9:,.1f} GB"
    return f"{nbytes / 1e6:,.0f} MB" if nbytes >= 10**6 else f"{nbytes / 1e3:,.0f} kB"
