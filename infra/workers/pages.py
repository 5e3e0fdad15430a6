"""The HTTP pages of schedulers and workers: Dask's dashboard, health and metrics.

They show the names of columns and files, logs and profiles, and every user of the host can open their port: HTTP has
none of the cluster's certificates.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import dask.config

LINK = "distributed.dashboard.link"  # Dask's setting for their address; empty where they are closed


def page_settings(shown: bool) -> dict[str, str]:
    """Dask's setting that shows the pages, at the address that the user's configuration gives, or closes them."""
    link = _link_of_user()  # before it is replaced
    return {LINK: link if shown else ""}


@cache
def _link_of_user() -> str:
    return str(dask.config.get(LINK))


def dask_setup(server: Any) -> None:
    """Close the port of the pages of a scheduler or worker unless they are to be shown (a preload of Dask)."""
    if not dask.config.get(LINK):
        server.http_server.stop()
