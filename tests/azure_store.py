"""Azurite, Microsoft's emulator of Azure's blobs, behind the proxy of the tests; with the container `shop`.

Install it with `npm install -g azurite`, or with --prefix and its node_modules/.bin on the PATH.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import shutil
import subprocess
import threading
import urllib.request
from email.utils import formatdate
from typing import Any
from urllib.parse import quote

from tests.object_store import Proxy

COMMAND = "azurite-blob"
ACCOUNT = "devstoreaccount1"
# Of all Azurites: Microsoft's documents have it.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
VERSION = "2021-12-02"


def is_installed() -> bool:
    return shutil.which(COMMAND) is not None


class AzureStore:
    """A process of Azurite that keeps everything in memory."""

    def __init__(self) -> None:
        command = [COMMAND, "--inMemoryPersistence", "--blobPort", "0", "--silent", "--disableTelemetry"]
        self._process = subprocess.Popen(
            [*command, "--skipApiVersionCheck"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self._process.stdout
        line = next((line for line in self._process.stdout if "listens on" in line), "")
        port = re.search(r":(\d+)\s*$", line)
        assert port, "azurite did not start"
        self.port = int(port[1])
        # What it says later would fill the pipe.
        self._reader = threading.Thread(target=self._process.stdout.read, daemon=True)
        self._reader.start()
        self.proxy = Proxy(self.port)
        self._send("/shop", "?restype=container", b"")

    @property
    def options(self) -> dict[str, Any]:
        """Options of the storage, as jobs write them."""
        return {"account_name": ACCOUNT, "account_key": KEY, "endpoint": f"{self.proxy.url}/{ACCOUNT}"}

    def put(self, key: str, content: bytes) -> None:
        self._send(f"/shop/{quote(key)}", "", content)

    def _send(self, path: str, query: str, content: bytes) -> None:
        """A PUT that is signed with the account's key, past the proxy."""
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": VERSION}
        if not query:
            headers["x-ms-blob-type"] = "BlockBlob"
        length = str(len(content)) if content else ""
        named = "\n".join(f"{name}:{value}" for name, value in sorted(headers.items()))
        resource = f"/{ACCOUNT}/{ACCOUNT}{path}" + ("\nrestype:container" if query else "")
        kind = "application/octet-stream"
        text = f"PUT\n\n\n{length}\n\n{kind}\n\n\n\n\n\n\n{named}\n{resource}"
        signature = base64.b64encode(hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()).decode()
        headers |= {"Authorization": f"SharedKey {ACCOUNT}:{signature}", "Content-Type": kind}
        url = f"http://127.0.0.1:{self.port}/{ACCOUNT}{path}{query}"
        request = urllib.request.Request(url, content, headers, method="PUT")
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 201

    def close(self) -> None:
        self.proxy.close()
        self._process.terminate()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout
        self._process.stdout.close()
