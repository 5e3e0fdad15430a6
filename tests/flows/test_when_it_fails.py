"""The README's table of failures: each message in it is one that the product really says."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_messages_of_the_table_are_those_of_the_code() -> None:
    table = (ROOT / "README.md").read_text().partition("## When it fails")[2].partition("\n## ")[0]
    messages = [m for row in table.splitlines() for m in re.findall(r"`([^`]+)`", row.split(" | ")[0])]
    code = "".join(p.read_text() for room in ("flows", "tasks", "infra") for p in (ROOT / room).rglob("*.py"))
    assert len(messages) >= 15
    assert [message for message in messages if message not in code] == []
