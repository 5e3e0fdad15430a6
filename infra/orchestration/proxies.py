"""Proxies of the environment (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY): requests to this host do not use them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit
from urllib.request import getproxies

import psutil

from infra.environment import is_loopback

LOOPBACK = ("127.0.0.1", "localhost", "::1")
EVERY_HOST = "*"


def bypass_proxies(api_url: str = "") -> None:
    """Exempt this host from the proxies of this process and of its children, next to the hosts in NO_PROXY.

    This host is the loopback, its own name, and the host of `api_url`, the address of a Prefect server, where that
    resolves to an address of this host. Does nothing where no proxy is set.
    """
    proxies = getproxies()
    exempt = [host.strip() for host in proxies.pop("no", "").split(",") if host.strip()]
    if not proxies or EVERY_HOST in exempt:
        return
    name = socket.gethostname()
    hosts = [*LOOPBACK, name, name.partition(".")[0]]
    api_host = urlsplit(api_url).hostname or ""
    if api_host and is_this_host(api_host):
        hosts.append(api_host)
    _exempt([*exempt, *hosts])


def is_this_host(host: str) -> bool:
    """Return whether a name or an address is one of this host; False for a name that does not resolve.

    >>> is_this_host("127.0.0.1")
    True
    """
    if is_loopback(host):
        return True
    try:
        resolved = {str(address[0]) for *_, address in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    interfaces = psutil.net_if_addrs().values()
    own = {address.address.partition("%")[0] for addresses in interfaces for address in addresses}
    return not resolved.isdisjoint(own)


def _exempt(hosts: Iterable[str]) -> None:
    # Programs read one spelling or the other, and an empty variable in lower case hides the one in upper case.
    value = ",".join(dict.fromkeys(hosts))
    os.environ["NO_PROXY"] = value
    os.environ["no_proxy"] = value
