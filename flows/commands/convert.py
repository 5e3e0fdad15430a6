"""The command `convert`: outputs and fitted workflows that were written under the former name, millrace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.console import terminal
from tasks.errors import DataError, JobError, few


def convert(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH..", help="outputs, or folders of outputs")],
) -> None:
    """Give outputs and fitted workflows that millrace wrote, the former name of rowmill, the new name.

    In each _manifest.json and workflow.json below the paths the key of the version is renamed, and the digest is made
    anew. Data files and what was learned stay as they are, byte for byte. Tags and cardinalities inside of data files
    keep the former key, under which nothing looks for them: the manifest has them, too.

    [bold]Examples[/bold]

      rowmill convert out/nightly
    """
    from tasks.graph.saved_workflow import seal as seal_workflow
    from tasks.storage.atomic import read_json, write_json
    from tasks.storage.documents import FORMER, NAME, is_former
    from tasks.storage.documents import seal as seal_manifest
    from tasks.storage.own_files import FITTED, MANIFEST

    console = terminal(soft_wrap=True)
    for path in paths:
        if not path.is_dir():
            raise JobError("there is no folder", where=str(path), do="give an output, or a folder of outputs")
        done, damaged = 0, list[Path]()
        for document in sorted([*path.rglob(MANIFEST), *path.rglob(FITTED)]):  # one version after the other
            data = read_json(document)
            if data is None:
                damaged.append(document)
            elif is_former(data):
                seal = seal_manifest if document.name == MANIFEST else seal_workflow
                write_json(document, seal({NAME if key == FORMER else key: data[key] for key in data}))
                console.print(f"converted {document}", markup=False)
                done += 1
        if damaged:
            raise DataError(
                "documents cannot be read, and are not converted",
                where=few(map(str, damaged)),
                do="restore them from a copy, or give this user access; then give the command again",
            )
        if not done:
            console.print(f"nothing at {path} has the former name, {FORMER}", markup=False)
