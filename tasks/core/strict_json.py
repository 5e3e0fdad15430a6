"""Values in strict JSON, which has no infinities: these are written as {"float": "inf"}, and read as numbers again.

Parameters of operators (in jobs, too), learned values and properties of columns are written in this form.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

NUMBERS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def encoded(value: Any) -> Any:
    """The value with {"float": "inf"}, "-inf" or "nan" in place of every float that is not finite.

    >>> encoded({"edges": [float("-inf"), 0.5], "values": (1, False)})
    {'edges': [{'float': '-inf'}, 0.5], 'values': [1, False]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": "nan" if math.isnan(value) else f"{value:g}"}
    if isinstance(value, Mapping):
        return {name: encoded(one) for name, one in value.items()}
    return [encoded(one) for one in value] if isinstance(value, (list, tuple)) else value


def decoded(value: Any) -> Any:
    """The value that `encoded` wrote.

    >>> decoded({"edges": [{"float": "-inf"}, 0.5]})
    {'edges': [-inf, 0.5]}
    """
    if isinstance(value, Mapping):
        if len(value) == 1 and isinstance(name := value.get("float"), str) and name in NUMBERS:
            return NUMBERS[name]
        return {name: decoded(one) for name, one in value.items()}
    return [decoded(one) for one in value] if isinstance(value, list) else value
