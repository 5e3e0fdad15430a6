"""The mean and the triangular factor of rows, in mergeable parts; the coordinates of rows along other axes.

One body for both engines; `xp` is numpy or CuPy. A factor R (upper triangular, diagonal non-negative) of centred rows X
is all that least squares and principal components need: R'R = X'X, and R has the square root of its condition number.
Source: Demmel, Grigori, Hoemmen, Langou, "Communication-optimal parallel and sequential QR and LU factorizations",
2012.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import ThreadpoolController

from tasks.engines.algorithms.reductions import on_host, total
from tasks.engines.types import Array

Numbers = tuple[Array, Any]  # (values, valid) of a column, valid None where no row is null


class Factor(NamedTuple):
    """Mean and triangular factor of some rows of p columns, in host memory.

    `n` rows have no null, `left_out` rows have one. `mean` is (2, p): the rounded means and their rounding errors, so
    that offsets of 1e9 cost no precision. `r` is (p, p).
    """

    n: int
    left_out: int
    mean: np.ndarray
    r: np.ndarray


class _OneThread:
    """Limits BLAS to one thread while a thread is inside.

    So the bits do not depend on the number of BLAS threads, and BLAS adds no threads to those of the pool.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = 0
        self.limit: Any = None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self.lock:
            if not self.inside:
                self.limit = _controller().limit(limits=1, user_api="blas")
            self.inside += 1
        try:
            yield
        finally:
            with self.lock:
                self.inside -= 1
                if not self.inside:
                    self.limit.restore_original_limits()


@lru_cache(maxsize=1)
def _controller() -> ThreadpoolController:
    """Handles of the BLAS libraries of this process; the search for them runs once."""
    return ThreadpoolController()


one_thread = _OneThread()


def row_sums(matrix: np.ndarray) -> np.ndarray:
    """The sum of each row of a matrix, as a column."""
    sums: np.ndarray = matrix.sum(axis=1, keepdims=True)
    return sums


def factor(
    columns: Sequence[Numbers], rows: int, xp: ModuleType, chunk: int, add: Callable[[Array], Any] = row_sums
) -> Factor:
    """The Factor of the rows without a null, `chunk` rows at a time; `left_out` counts the rows with a null.

    `add` sums the rows of a matrix, in an order that its shape alone decides.

    With infinite values the means are not finite and the factor is NaN.
    """
    width = len(columns)
    valid = whole_rows(columns, xp)
    values = [v if valid is None else v[valid] for v, _ in columns]
    n = rows if valid is None else total(valid)
    if not n:
        return Factor(0, rows, np.zeros((2, width)), np.zeros((width, width)))
    cuts = [(start, min(start + chunk, n)) for start in range(0, n, chunk)]
    with np.errstate(invalid="ignore", over="ignore"):
        mean = _means(values, cuts, xp, add)
    if not np.isfinite(mean).all():
        return Factor(n, rows - n, mean, np.full((width, width), np.nan))
    high, rest = (xp.asarray(part)[:, None] for part in mean)
    r = xp.zeros((0, width))
    with one_thread():
        for start, stop in cuts:
            centred = _stack_rows(values, start, stop, xp)
            centred -= high
            centred -= rest
            r = _triangle(xp.concatenate([r.T, centred], axis=1).T, xp)
    return Factor(n, rows - n, mean, _square(on_host(r)))


def merge(a: Factor, b: Factor) -> Factor:
    """The Factor of the rows of both: QR of the stack of R_a, R_b and sqrt(n_a n_b / n) (mean_b - mean_a)."""
    if not a.n or not b.n:
        return (b if not a.n else a)._replace(left_out=a.left_out + b.left_out)
    n = a.n + b.n
    apart = (b.mean[0] - a.mean[0]) + (b.mean[1] - a.mean[1])
    step = a.mean[1] + apart * (b.n / n)
    high = a.mean[0] + step
    back = high - a.mean[0]
    mean = np.stack([high, (a.mean[0] - (high - back)) + (step - back)])  # the sum's rounding error (Knuth's TwoSum)
    with one_thread():
        r = _triangle(np.vstack([a.r, b.r, (a.n / n * b.n) ** 0.5 * apart]), np)
    return Factor(n, a.left_out + b.left_out, mean, _square(r))


def principal_axes(r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(singular values descending, axes as columns) of a factor: the largest loading of an axis is positive.

    If several loadings are the largest up to rounding, the first of them is positive.
    """
    with one_thread():
        _, singular, rows = np.linalg.svd(r)
    return singular, (rows * signs(rows)).T


def signs(axes: np.ndarray) -> np.ndarray:
    """A column of 1 or -1 for each row of `axes`, which makes its largest entry positive; of several that are the
    largest up to rounding, the first."""
    size = np.abs(axes)
    first = np.argmax(size >= size.max(axis=1, keepdims=True) * (1 - 1e-8), axis=1)
    return np.where(np.take_along_axis(axes, first[:, None], 1) < 0, -1.0, 1.0)


def project(
    columns: Sequence[Numbers], rows: int, mean: np.ndarray, axes: Array, xp: ModuleType, tile: int
) -> tuple[Array, Array | None]:
    """(scores (k, rows), valid): the coordinates of the centred rows along `axes` (p, k), summed column by column.

    Not a matrix product, whose bits depend on the number of rows: these sums have the same bits for any number of rows
    and on both engines. A row with a null is not valid; valid is None if no row has a null.
    """
    scores = xp.zeros((axes.shape[1], rows))
    values = [value for value, _ in columns]
    high, rest = (xp.asarray(part)[:, None] for part in mean)
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, rows, tile):
            stop = min(start + tile, rows)
            centred = _stack_rows(values, start, stop, xp)
            centred -= high
            centred -= rest
            total = xp.zeros((axes.shape[1], stop - start))
            product = xp.empty_like(total)
            for row, loadings in zip(centred, axes, strict=True):
                xp.multiply(loadings[:, None], row, out=product)
                total += product
            scores[:, start:stop] = total
    return scores, whole_rows(columns, xp)


def whole_rows(columns: Sequence[Numbers], xp: ModuleType) -> Array | None:
    """Which rows have no null; None if no row has one."""
    whole = None
    for _, valid in columns:
        if valid is not None:
            whole = valid if whole is None else xp.logical_and(whole, valid)
    return whole


def _stack_rows(values: Sequence[Array], start: int, stop: int, xp: ModuleType) -> Array:
    """Rows start .. stop - 1 of all columns as float64 (p, rows), one column after another in memory.

    One call for all columns: a call per column would release the interpreter's lock thousands of times.
    """
    return xp.stack([value[start:stop] for value in values], dtype=xp.float64, casting="unsafe")


def _means(
    values: Sequence[Array], cuts: Sequence[tuple[int, int]], xp: ModuleType, add: Callable[[Array], Any]
) -> np.ndarray:
    """(2, p): the mean of each column, exact for constant columns, and its rounding error."""
    n = cuts[-1][1]
    first = _stack_rows(values, 0, 1, xp)
    high = first + sum(add(_stack_rows(values, *cut, xp) - first) for cut in cuts) / n
    rest = sum(add(_stack_rows(values, *cut, xp) - high) for cut in cuts) / n
    return on_host(xp.stack([high[:, 0], rest[:, 0]]))


def _triangle(stacked: Array, xp: ModuleType) -> Array:
    """The factor R of a matrix, with a non-negative diagonal."""
    r = xp.linalg.qr(stacked, mode="r")
    return r * xp.where(xp.diagonal(r) < 0, -1.0, 1.0)[:, None]


def _square(r: np.ndarray) -> np.ndarray:
    """The factor as a square matrix: rows of 0 below, if it has fewer rows than columns."""
    return r if len(r) == r.shape[1] else np.vstack([r, np.zeros((r.shape[1] - len(r), r.shape[1]))])
