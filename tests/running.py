"""The section `cluster` of a job that runs on a cluster of this process."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any


def section_of(cluster: Any) -> dict[str, Any]:
    """Its address, and its certificates as files of this user, which are removed with the folder of the session."""
    from infra.clusters.encryption import contents_of

    where = {"kind": "address", "address": cluster.scheduler_address}
    texts = contents_of(cluster.security)
    if not texts:
        return where
    folder = Path(tempfile.mkdtemp(prefix="tls-", dir=os.environ.get("ROWMILL_TEST_HOME")))
    for name, text in texts.items():
        (folder / f"{name}.pem").write_text(text)
    return where | {"tls": {name: str(folder / f"{name}.pem") for name in texts}}
