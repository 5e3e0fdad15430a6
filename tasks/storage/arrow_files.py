"""Files of a store as a file system of Arrow, for its datasets, which find columns in the names of folders."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs

from tasks.core.plan import File
from tasks.storage.files import open_binary


def make_dataset(
    folder: str,
    files: Sequence[File],
    options: Mapping[str, Any],
    form: str = "parquet",
    partitioning: ds.Partitioning | None = None,
) -> ds.Dataset:
    """The files of a folder, local or of a storage, as one dataset with the columns of `name=value` folders.

    Bytes are those of the files as they were listed; a DataError if one is another by now. `form` is Arrow's name of
    their format, `partitioning` has the types of the columns of folders, which are guessed without it.
    """
    system = pafs.PyFileSystem(_FilesForArrow(files, options))
    return ds.dataset(
        [_without_scheme(file.path) for file in files],
        filesystem=system,
        format=form,
        partitioning=partitioning or ds.HivePartitioning.discover(infer_dictionary=True),
        partition_base_dir=_without_scheme(folder),
    )


def _without_scheme(path: str) -> str:
    return path.partition("://")[2] if "://" in path else path


class _FilesForArrow(pafs.FileSystemHandler):  # type: ignore[misc]
    """Files that were listed, by their paths without the scheme, which Arrow would take for folders."""

    def __init__(self, files: Sequence[File], options: Mapping[str, Any]) -> None:
        self._files = {_without_scheme(file.path): file for file in files}
        self._options = options

    def get_type_name(self) -> str:
        return "rowmill"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: Sequence[str]) -> list[pafs.FileInfo]:
        kinds = {True: pafs.FileType.File, False: pafs.FileType.NotFound}
        sizes = {path: self._files[path].size for path in paths if path in self._files}
        return [pafs.FileInfo(path, kinds[path in sizes], size=sizes.get(path)) for path in paths]

    def open_input_file(self, path: str) -> pa.NativeFile:
        opened = open_binary(self._files[path], self._options)
        if isinstance(opened, io.FileIO):  # Arrow closes no file of Python's: it opens the same one again
            with opened:
                return pa.OSFile(f"/proc/self/fd/{opened.fileno()}", "rb")
        return pa.PythonFile(opened, mode="r")

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self.open_input_file(path)

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise NotImplementedError("these files are only read, by the paths that were listed")

    get_file_info_selector = open_output_stream = open_append_stream = _refuse
    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = move = copy_file = _refuse
