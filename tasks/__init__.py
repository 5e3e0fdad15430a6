"""The product: what happens to rows.

A process with a variable of the former name, millrace, ends here: a forgotten limit would be no limit.
"""

import os as _os

if _former := sorted(name for name in _os.environ if name.startswith("MILLRACE_")):
    _lines = [f"{name} is now called ROWMILL_{name.removeprefix('MILLRACE_')}" for name in _former]
    raise SystemExit(
        "error: the environment has variables of millrace, the former name of rowmill\n  where: "
        + "; ".join(_lines)
        + "\n  do: set the new names, and unset the old ones"
    )
