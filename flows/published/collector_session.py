"""How collectors are spoken to over HTTP: an answer is not trusted to be short, or to come from where it should."""

from __future__ import annotations

from typing import Any

import requests

MOST_ANSWER = 2**16  # bytes of an answer that are read


class CollectorSession(requests.Session):
    """A session that follows no redirect, which would hand a key on to another host, and reads 64 KiB of an answer."""

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        """Send a request; an OSError for an answer that redirects it."""
        options |= {"allow_redirects": False, "stream": True}
        answer = super().send(request, **options)
        try:
            answer._content = answer.raw.read(MOST_ANSWER, decode_content=False)  # as requests does, but for the bound
            answer._content_consumed = True  # type: ignore[attr-defined]
        finally:
            answer.close()
        if answer.is_redirect:
            raise OSError(f"it answers {answer.status_code}, a redirect, which is not followed: give its own address")
        return answer
