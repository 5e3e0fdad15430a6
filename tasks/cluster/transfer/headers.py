"""What Dask's serializers hand on in addition to the frames of a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

Header: TypeAlias = dict[str, Any]  # of one message: how its frames are read, as plain values
Context: TypeAlias = Mapping[str, Any] | None  # of a connection: its sender and recipient
