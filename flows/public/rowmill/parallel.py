"""Many small calls of a function of one's own in parallel, with data that each worker gets once."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable
from typing import Any

from tasks.cluster.current import current_pool, using
from tasks.cluster.out_of_memory import is_out_of_memory
from tasks.cluster.transfer import gpu_setup
from tasks.core.unforeseen_errors import reason
from tasks.engines.convert.libraries import library
from tasks.errors import DataError, RowmillError


def each(function: Callable[..., Any], items: Iterable[Any], broadcast: object = None, client: Any = None) -> list[Any]:
    """Call a function for each item, in parallel, and return the results in the order of the items.

    function: called as function(item), or as function(broadcast, item) where there is something to broadcast.
    items: small values, such as pairs of column names, which travel with the calls.
    broadcast: what all calls share, such as a pandas or cuDF frame. Each worker gets it once: do not change it. A Dask
        Future of it, as `client.scatter` gives, is fetched first.
    client: the `distributed.Client` whose workers make the calls; by default the current one, else threads.

    Workers must be able to import the modules of the function; a lambda or a function of a notebook travels as it is.
    The first error ends the rest. Errors: a JobError for a `client` that is not one, and for what cannot be pickled; a
    DataError that names the item for which the function failed, unless it raised a RowmillError or memory was short.

    >>> each(lambda prices, n: sum(prices[-n:]), [1, 2], broadcast=[3, 4, 5])
    [5, 9]
    >>> each(lambda n: 6 // n, [3, 0])
    Traceback (most recent call last):
    ...
    tasks.errors.DataError: <lambda> failed
      where: each, item 1: 0
      why: ZeroDivisionError: integer division or modulo by zero...
    """
    if library(broadcast) == "distributed" and hasattr(broadcast, "result"):
        broadcast = broadcast.result()
    engine = "cudf" if library(broadcast) == "cudf" else "pandas"
    with using(client):
        pool = current_pool(gpu_setup.allocatable, lambda client: gpu_setup.prepare_workers(client, engine))
        return pool.map(_call, (function, broadcast), list(enumerate(items)))


def _call(shared: tuple[Callable[..., Any], Any], item: tuple[int, Any]) -> object:
    (function, broadcast), (number, value) = shared, item
    if library(broadcast) == "cudf":
        gpu_setup.prepare("cudf")
    try:
        return function(value) if broadcast is None else function(broadcast, value)
    except Exception as error:
        if isinstance(error, RowmillError) or is_out_of_memory(error):
            raise
        what = f"{getattr(function, '__name__', 'the function')} failed"
        why = reason(error)
        do = "call it here with this item, and correct the function or the item"
        raise DataError(what, where=f"each, item {number:,}: {reprlib.repr(value)}", why=why, do=do) from error
