"""Arguments that commands share: an output by its path or URL, and the options of the storage of a URL.

They are texts: as a `Path`, `s3://shop/out` would become `s3:/shop/out`.
"""

from __future__ import annotations

from typing import Annotated

import typer

Output = Annotated[str, typer.Argument(help="output of a run: its folder or URL", show_default=False)]
OutputOrWorkflow = Annotated[
    str, typer.Argument(help="output of a run, or a saved workflow: its folder or URL", show_default=False)
]
StorageOptions = Annotated[str | None, typer.Option(help="for URLs: a name, as in source.storage_options")]
