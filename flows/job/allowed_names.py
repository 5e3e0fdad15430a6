"""Whether a host lists the name of a scheduler, host, image, class or collector, in ROWMILL_ALLOWED_CLUSTERS."""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv4Address


def is_listed(name: str, pattern: str) -> bool:
    """Tell whether a name fits a pattern of the list.

    Names are compared by the labels between dots, colons and slashes, of which both have as many. A star stands for
    characters of one label, and for none of `@`, a comma or a blank, which could lead to another host. In an image a
    star as tag takes any tag, and without a tag in the pattern any is taken.

    >>> is_listed("gpu-1", "gpu-*"), is_listed("gpu-1.evil.com", "gpu-*"), is_listed("gpu-1", "*.lab")
    (True, False, False)
    >>> is_listed("tls://10.0.0.7:8786", "tls://10.0.0.*:8786"), is_listed("tls://10.0.0.io:8786", "tls://10.0.0.*:8786")
    (True, False)
    >>> is_listed("hub/rowmill:1.2", "hub/rowmill:*"), is_listed("hub/rowmill@sha256:0", "hub/*")
    (True, False)
    """
    scheme = name.rpartition("://")[0]
    wanted_scheme = pattern.rpartition("://")[0]
    mine = _segments(name)
    wanted = _segments(pattern)
    if scheme != wanted_scheme or len(mine) != len(wanted):
        return False
    if not scheme and len(wanted) > 1:
        mine[-1], wanted[-1] = _without_free_tag(mine[-1], wanted[-1])
    return all(map(_fits, mine, wanted)) and (not _is_ipv4_pattern(wanted[0][0]) or _is_ipv4(mine[0][0]))


def _segments(name: str) -> list[list[str]]:
    """Return the parts between slashes, each as host, or path, and port, or tag."""
    return [segment.split(":") for segment in name.rpartition("://")[2].split("/")]


def _without_free_tag(mine: list[str], wanted: list[str]) -> tuple[list[str], list[str]]:
    """Return the last segments of two images without their tags, where the pattern takes any tag."""
    if len(mine) == 2 and "@" not in mine[0] + mine[1] and wanted[1:] in ([], ["*"]):
        return mine[:1], wanted[:1]
    return mine, wanted


def _fits(mine: list[str], wanted: list[str]) -> bool:
    return len(mine) == len(wanted) and all(map(_part_fits, mine, wanted))


def _part_fits(part: str, pattern: str) -> bool:
    labels = part.split(".")
    patterns = pattern.split(".")
    return len(labels) == len(patterns) and all(map(_label_fits, labels, patterns))


def _label_fits(label: str, pattern: str) -> bool:
    signs = {"*": r"[^@,\s]*", "?": r"[^@,\s]"}
    return re.fullmatch("".join(signs.get(sign, re.escape(sign)) for sign in pattern), label) is not None


def _is_ipv4_pattern(host: str) -> bool:
    """Tell whether a pattern is of addresses: 10.0.0.com would be a name that somebody can register."""
    return re.fullmatch(r"[\d*?]+(\.[\d*?]+){3}", host) is not None and any(map(str.isdecimal, host.split(".")))


def _is_ipv4(host: str) -> bool:
    try:
        IPv4Address(host)
    except AddressValueError:
        return False
    return True
