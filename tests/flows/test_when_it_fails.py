"""The tables of failures in the manuals: each message in them is one that the product really says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("manual", ["flows/OPERATIONS.md", "infra/README.md"])
def test_the_messages_of_the_table_are_those_of_the_code(manual: str) -> None:
    table = (ROOT / manual).read_text().partition("## When it fails")[2].partition("\n## ")[0]
    messages = [m for row in table.splitlines() for m in re.findall(r"`([^`]+)`", row.split(" | ")[0])]
    code = "".join(p.read_text() for room in ("flows", "tasks", "infra") for p in (ROOT / room).rglob("*.py"))
    assert len(messages) >= 15
    assert [message for message in messages if message not in code] == []
