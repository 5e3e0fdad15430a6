"""Requests to this host do not go through the proxies of the environment."""

from __future__ import annotations

import os
import socket
from urllib.request import proxy_bypass

import psutil
import pytest

from infra.orchestration.proxies import bypass_proxies

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture
def company(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The environment of a company whose proxy does not know its hosts."""
    for name in PROXIES:
        monkeypatch.setenv(name, "")  # so that all of them are as before when the test is over
        monkeypatch.delenv(name)
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    return monkeypatch


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", socket.gethostname()])
def test_this_host_is_exempt(company: pytest.MonkeyPatch, host: str) -> None:
    assert not proxy_bypass(host)
    bypass_proxies()
    assert proxy_bypass(host)
    assert not proxy_bypass("storage.example")


@pytest.mark.parametrize("spelling", ["NO_PROXY", "no_proxy"])
def test_hosts_that_were_exempt_stay_so(company: pytest.MonkeyPatch, spelling: str) -> None:
    company.setenv(spelling, "metrics.example, .internal.example")
    bypass_proxies()
    assert [proxy_bypass(host) for host in ("metrics.example", "a.internal.example")] == [True, True]
    assert os.environ["NO_PROXY"] == os.environ["no_proxy"]


def test_an_empty_no_proxy_in_lower_case_does_not_hide_them(company: pytest.MonkeyPatch) -> None:
    company.setenv("no_proxy", "")
    bypass_proxies()
    assert proxy_bypass("127.0.0.1")


def test_the_server_s_host_is_exempt_where_it_is_this_host(company: pytest.MonkeyPatch) -> None:
    addresses = [address for interface in psutil.net_if_addrs().values() for address in interface]
    own = next(address.address for address in addresses if address.family == socket.AF_INET)
    company.setattr(socket, "getaddrinfo", lambda host, _: [(0, 0, 0, "", (own, 0))])
    bypass_proxies("http://prefect.example:4200/api")
    assert proxy_bypass("prefect.example")


def test_a_server_elsewhere_is_reached_through_the_proxy(company: pytest.MonkeyPatch) -> None:
    company.setattr(socket, "getaddrinfo", lambda host, _: [(0, 0, 0, "", ("192.0.2.1", 0))])
    bypass_proxies("https://prefect.example/api")
    assert not proxy_bypass("prefect.example")


def test_without_a_proxy_nothing_is_set(company: pytest.MonkeyPatch) -> None:
    company.delenv("HTTP_PROXY")
    company.delenv("https_proxy")
    bypass_proxies()
    assert "NO_PROXY" not in os.environ


def test_all_hosts_stay_exempt(company: pytest.MonkeyPatch) -> None:
    company.setenv("NO_PROXY", "*")
    bypass_proxies()
    assert os.environ["NO_PROXY"] == "*"
