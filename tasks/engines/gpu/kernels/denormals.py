"""CuPy's kernels compute with numbers below the normal range, as the CPU does.

CuPy compiles every kernel with `-ftz=true`: float32 numbers below 1.2e-38 then are 0 when they are read, compared or
written. It has no setting for this. The option is therefore left out where CuPy hands its options to NVRTC, and CuPy's
cache of compiled kernels, which other programs of the user share, gets keys of its own for ours.
"""

from __future__ import annotations

from typing import Any

import cupy
from cupy.cuda import compiler

FLUSH = "-ftz=true"


def keep_denormals() -> None:
    """Have CuPy compile without `FLUSH`. Call this before a process computes: some kernels stay as compiled before."""
    compiled = compiler._NVRTCProgram.compile
    key = compiler._get_cupy_cache_key
    if getattr(compiled, "keeps_denormals", False):
        return

    def compile(self: object, options: tuple[str, ...] = (), *args: Any, **kwargs: Any) -> object:
        return compiled(self, tuple(option for option in options if option != FLUSH), *args, **kwargs)

    compile.keeps_denormals = True  # type: ignore[attr-defined]
    compiler._NVRTCProgram.compile = compile
    compiler._get_cupy_cache_key = lambda: f"{key()} denormals"
    cupy.clear_memo()
