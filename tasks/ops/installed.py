"""Operators of installed packages: a package names them in its entry points, and they are imported when first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache

from tasks.core.nvtabular import of_attribute
from tasks.errors import HostError, JobError, near
from tasks.ops.user_code import VARIABLE, import_path, is_allowed

GROUP = "rowmill.operators"
Classes = Mapping[str, type]


@dataclass(frozen=True, order=True)
class Entry:
    """An entry point of a package: `module:Class` offers a class by its name, `module` all operators defined in it."""

    package: str
    version: str
    name: str
    value: str

    @property
    def module(self) -> str:
        return self.value.partition(":")[0]

    @property
    def class_name(self) -> str:
        """The name of the class that it offers, "" where it offers a module."""
        return self.name if ":" in self.value else ""

    @property
    def where(self) -> str:
        return f"package {self.package} {self.version}, entry point {self.name} = {self.value} of {GROUP}"


def entries() -> tuple[Entry, ...]:
    """The entry points of all installed packages; nothing of theirs is imported."""
    return _entries(tuple(sys.path))


@lru_cache(maxsize=1)
def _entries(path: tuple[str, ...]) -> tuple[Entry, ...]:
    from importlib.metadata import entry_points

    points = [(point, point.dist) for point in entry_points(group=GROUP)]
    return tuple(sorted(Entry(d.name, d.version, p.name, p.value.replace(" ", "")) for p, d in points if d is not None))


def refuse_clash(name: str) -> None:
    """Raise a HostError where a package offers an operator by the name of a built-in one."""
    for entry in entries():
        if entry.class_name == name:
            raise _clash(entry, name)


def load_installed_operator(name: str, base: type, built_in: Collection[str]) -> type:
    """The class of this name that an installed package offers, a subclass of `base`.

    A package that names its class is asked first, and no other is imported. A JobError for a name that nobody offers or
    that two packages offer, a HostError for a package that is not allowed here or that cannot be imported.
    """
    offers = [(entry, classes_of(entry, base, built_in)[name]) for entry in _find_entries(name)]
    failed: list[HostError] = []
    known = [*built_in, *(entry.class_name for entry in entries() if entry.class_name)]
    for entry in entries() if not offers else ():
        if entry.class_name:
            continue
        try:
            classes = classes_of(entry, base, built_in)
        except HostError as error:
            failed.append(error)
            continue
        known += classes
        offers += [(entry, classes[name])] if name in classes else []
    _refuse_two(name, [entry for entry, _ in offers])
    if offers:
        return offers[0][1]
    if failed:
        lines = "; ".join(f"{error.what} ({error.where}): {error.why}" for error in failed)
        raise HostError(f"unknown operator {name!r}", why=f"a package was left out: {lines}", do=failed[0].do)
    do = of_attribute("nvt.ops", name) or near(name, sorted(set(known)))
    raise JobError(f"unknown operator {name!r}", do=do)


def classes_of(entry: Entry, base: type, built_in: Collection[str]) -> Classes:
    """The operators that an entry point offers, by name; a HostError names package and entry point and says what to do.

    A module that the host does not allow is not imported.
    """
    if not is_allowed(entry.module):
        raise HostError(
            f"{entry.value!r} may not be used",
            where=entry.where,
            why=f"{VARIABLE} of the host limits own functions and operators, and does not list it",
            do=f"ask whoever runs the host to add {entry.module} to {VARIABLE}",
        )
    try:
        target = import_path(entry.value) if entry.class_name else importlib.import_module(entry.module)
    except (Exception, SystemExit) as error:  # whatever the code of a package raises
        text = " ".join(str(error).split())
        raise _make_package_error(
            entry, text if isinstance(error, HostError) else f"{type(error).__name__}: {text}"
        ) from error
    if entry.class_name:
        if not (isinstance(target, type) and issubclass(target, base)):
            raise _make_package_error(entry, f"{entry.value} is not a subclass of rowmill.ops.{base.__name__}")
        if target.__name__ != entry.name:
            raise _make_package_error(entry, f"the class is called {target.__name__}, the entry point {entry.name}")
        classes = {entry.name: target}
    else:
        mine = (cls for cls in vars(target).values() if isinstance(cls, type) and issubclass(cls, base))
        classes = {
            c.__name__: c for c in mine if not c.__name__.startswith("_") and _within(c.__module__, entry.module)
        }
        if not classes:
            raise _make_package_error(
                entry, f"the module {entry.module} defines no subclass of rowmill.ops.{base.__name__}"
            )
    for name in classes:
        if name in built_in:
            raise _clash(entry, name)
    return classes


def _find_entries(name: str) -> list[Entry]:
    offers = [entry for entry in entries() if entry.class_name == name]
    _refuse_two(name, offers)
    return offers


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _refuse_two(name: str, offers: list[Entry]) -> None:
    if len(offers) > 1:
        raise JobError(
            f"two packages offer an operator {name!r}",
            where="; ".join(entry.where for entry in offers),
            do=f"name the one that is meant by import path, such as op: {offers[0].module}:{name}",
        )


def _make_package_error(entry: Entry, why: str) -> HostError:
    return HostError(
        f"the operators of the package {entry.package} cannot be used",
        where=entry.where,
        why=why,
        do=f"fix the package, or install another version of it: pip install --upgrade {entry.package}; "
        f"or do without it: pip uninstall {entry.package}",
    )


def _clash(entry: Entry, name: str) -> HostError:
    return HostError(
        f"the package {entry.package} offers an operator {name!r}, which is the name of a built-in one",
        where=entry.where,
        why="a job must mean the same with the package and without it",
        do=f"give the class of the package another name, or do without it: pip uninstall {entry.package}",
    )
