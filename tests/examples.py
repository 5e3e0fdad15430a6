"""What is tried in every run, and what with `-m nightly` alone: random examples, and cases of parametrized tests."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

FEW = 25  # examples of a property in the profile `ci`
ALL = 100  # in the profile `nightly`, where a test does not say how many

# How long one example takes says how busy the machine is, what a GPU has to compile first, and that the table of all
# characters is not there yet.
COMMON: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}


def load_profile(name: str) -> None:
    """Load `ci` or `nightly`, before test modules are imported."""
    settings.register_profile("ci", max_examples=FEW, derandomize=True, database=None, **COMMON)
    settings.register_profile("nightly", max_examples=ALL, derandomize=False, print_blob=True, **COMMON)
    settings.load_profile(name)


def examples(most: int, *unchecked: HealthCheck) -> settings:
    """Settings of a property that tries so many examples with `-m nightly`, and at most `FEW` in other runs."""
    if settings.get_current_profile_name() == "ci":
        most = min(most, FEW)
    return settings(max_examples=most, suppress_health_check=[HealthCheck.too_slow, *unchecked])


def nightly(cases: Iterable[Any]) -> list[Any]:
    """Cases of a parametrized test, for `-m nightly` alone; those of several parameters are tuples."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.nightly) for case in cases]


def nightly_but(always: Collection[Any], cases: Iterable[Any]) -> list[Any]:
    """All cases of a parametrized test, for `-m nightly` but for those of every run."""
    cases = list(cases)
    return [*always, *nightly(case for case in cases if case not in always)]
