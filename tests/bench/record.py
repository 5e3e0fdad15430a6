"""What a benchmark has measured, as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_record(measured: Mapping[str, Any], out: Path | None) -> None:
    """Write figures into a file, or to the standard output without one."""
    text = json.dumps(measured, indent=1, ensure_ascii=False) + "\n"
    if out:
        out.write_text(text)
    else:
        sys.stdout.write(text)
