"""The operators. Every module in this folder is imported, and every operator class in it is found here by its name."""

import importlib
import pkgutil

from tasks.ops.base import Context, Learned, Operator, Unit, make_operator

for _module in pkgutil.iter_modules(__path__):
    if not _module.name.startswith("_"):
        importlib.import_module(f"{__name__}.{_module.name}")

globals().update({name: cls for name, cls in Operator.registry.items() if cls.__module__.startswith(__name__)})

__all__ = [  # noqa: PLE0604
    "Context",
    "Learned",
    "Operator",
    "Unit",
    "make_operator",
    *(name for name in Operator.registry if ":" not in name),
]
