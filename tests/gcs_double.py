"""A double of Google Cloud Storage, for its preconditions: no emulator that can be installed has them.

It knows what obstore sends of the XML interface (https://cloud.google.com/storage/docs/xml-api/overview): objects with
ETags and generations, `x-goog-if-generation-match`, listings in pages, uploads in parts, copies. It checks no
signature.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.object_store import Proxy

PAGE = 1_000
GENERATION = "x-goog-if-generation-match"


@dataclass(frozen=True)
class Blob:
    """One object: its content and the generation that wrote it."""

    content: bytes
    generation: int
    etag: str

    @property
    def headers(self) -> dict[str, str]:
        return {"ETag": self.etag, "x-goog-generation": str(self.generation), "Last-Modified": formatdate(usegmt=True)}


@dataclass
class Bucket:
    """The objects of the bucket `shop`, and the parts of uploads that have not ended."""

    blobs: dict[str, Blob] = field(default_factory=dict)
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    names: list[str] | None = None
    generations: Any = field(default_factory=lambda: itertools.count(1_700_000_000_000_000))
    lock: Any = field(default_factory=threading.Lock)

    def list_names(self) -> list[str]:
        """All names, in order; sorted again only if there are others."""
        with self.lock:
            if self.names is None or len(self.names) != len(self.blobs):
                self.names = sorted(self.blobs)
            return self.names

    def write(self, key: str, content: bytes, wanted: str | None = None) -> Blob | None:
        """The new object; None where the generation that is there (0: none) is not the wanted one."""
        with self.lock:
            there = self.blobs.get(key)
            if wanted is not None and int(wanted) != (there.generation if there else 0):
                return None
            generation = next(self.generations)
            digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
            blob = Blob(content, generation, f'"{digest}-{generation}"')
            self.names = self.names if key in self.blobs else None
            self.blobs[key] = blob
            return blob


class Handler(BaseHTTPRequestHandler):
    """The requests of one connection."""

    protocol_version = "HTTP/1.1"
    bucket: Bucket

    def log_message(self, *arguments: Any) -> None:
        """Requests are counted by the proxy."""

    @property
    def key(self) -> str:
        return unquote(urlsplit(self.path).path.removeprefix("/shop").removeprefix("/"))

    @property
    def query(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.path).query, keep_blank_values=True).items()}

    def do_GET(self) -> None:
        if not self.key:
            self._list()
            return
        blob = self.bucket.blobs.get(self.key)
        if blob is None:
            self._refuse(404, "NoSuchKey")
        elif self.headers.get("if-match", blob.etag) != blob.etag:
            self._refuse(412, "PreconditionFailed")
        elif asked := self.headers.get("range"):
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, stop = int(first), min(int(last or len(blob.content)) + 1, len(blob.content))
            more = {"Content-Range": f"bytes {start}-{stop - 1}/{len(blob.content)}"}
            self._answer(206, blob.content[start:stop], blob.headers | more)
        else:
            self._answer(200, blob.content, blob.headers)

    do_HEAD = do_GET

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers.get("content-length", 0)))
        if "uploadId" in self.query:
            self.bucket.uploads[self.query["uploadId"]][int(self.query["partNumber"])] = content
            self._answer(200, b"", {"ETag": f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'})
            return
        if source := self.headers.get("x-goog-copy-source"):
            there = self.bucket.blobs.get(unquote(source).removeprefix("/").removeprefix("shop/"))
            if there is None:
                self._refuse(404, "NoSuchKey")
                return
            content = there.content
        blob = self.bucket.write(self.key, content, self.headers.get(GENERATION))
        if blob is None:
            self._refuse(412, "PreconditionFailed")
        else:
            self._answer(200, b"<CopyObjectResult/>" if source else b"", blob.headers)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        if "uploads" in self.query:
            upload = f"upload-{next(self.bucket.generations)}"
            self.bucket.uploads[upload] = {}
            text = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
            self._answer(200, text.encode())
            return
        parts = self.bucket.uploads.pop(self.query["uploadId"])
        blob = self.bucket.write(self.key, b"".join(parts[number] for number in sorted(parts)))
        assert blob
        text = f"<CompleteMultipartUploadResult><ETag>{escape(blob.etag)}</ETag></CompleteMultipartUploadResult>"
        self._answer(200, text.encode(), blob.headers)

    def do_DELETE(self) -> None:
        if "uploadId" in self.query:
            self.bucket.uploads.pop(self.query["uploadId"], None)
            self._answer(204, b"")
        elif self.bucket.blobs.pop(self.key, None) is None:
            self._refuse(404, "NoSuchKey")
        else:
            self._answer(204, b"")

    def _list(self) -> None:
        query = self.query
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token", "")
        names = self.bucket.list_names()
        entries: dict[str, str] = {}
        last = ""
        cut = False
        for name in islice(names, max(bisect_left(names, prefix), bisect_right(names, after)), None):
            if not name.startswith(prefix):
                break
            rest = name[len(prefix) :]
            folder = prefix + rest.partition(delimiter)[0] + delimiter if delimiter and delimiter in rest else ""
            cut = len(entries) == PAGE and folder not in entries
            if cut:
                break
            last = name
            entries[folder or name] = self._describe(folder, name)
        token = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if cut else ""
        text = f"<ListBucketResult><IsTruncated>{str(cut).lower()}</IsTruncated>{token}{''.join(entries.values())}"
        self._answer(200, f"{text}</ListBucketResult>".encode())

    def _describe(self, folder: str, name: str) -> str:
        if folder:
            return f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>"
        blob = self.bucket.blobs[name]
        return (
            f"<Contents><Key>{escape(name)}</Key><Size>{len(blob.content)}</Size><ETag>{escape(blob.etag)}</ETag>"
            "<LastModified>2026-11-29T00:00:00.000Z</LastModified></Contents>"
        )

    def _refuse(self, status: int, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())

    def _answer(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


class GcsDouble:
    """The double in a thread of this process, behind a proxy; it has the bucket `shop`."""

    def __init__(self) -> None:
        self.bucket = Bucket()
        handler = type("BucketHandler", (Handler,), {"bucket": self.bucket})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.proxy = Proxy(self._server.server_port)

    @property
    def options(self) -> dict[str, Any]:
        """Options of the storage, as jobs write them."""
        without_token = {"client_email": "", "private_key": "", "private_key_id": "", "disable_oauth": True}
        return {"token": without_token, "endpoint_url": self.proxy.url}

    def put(self, key: str, content: bytes) -> None:
        self.bucket.write(key, content)

    def close(self) -> None:
        self.proxy.close()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
