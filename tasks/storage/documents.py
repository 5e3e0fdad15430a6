"""Documents that rowmill writes beside its data, as models: read strictly, written as strict JSON.

A folder may come from anywhere. What one of these files says is checked field by field before anything is done with it;
an error names the file and the field. Each model, a class of pydantic or a dataclass, stands beside the code that uses
it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from dataclasses import asdict
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from tasks.core.dtypes import parse_dtype
from tasks.core.schema import ROW, check_names
from tasks.core.strict_json import JsonObject, decode_floats, encode_floats
from tasks.core.versions import stable_json
from tasks.errors import DataError, RowmillError

RESTORE = "restore the folder from a copy, or make it again"
DIGEST = "digest"  # of the file's own content, all other fields


def _inside(path: str) -> str:
    parts = path.split("/")
    if not path or path.startswith("/") or "\\" in path or "\0" in path or {"", ".", ".."} & {*parts}:
        raise ValueError(f"{path!r} is not a path inside of the folder")
    return path


def _table_name(name: str) -> str:
    if not re.fullmatch(r"[\w+-][\w.+-]*\.vocab", name):
        raise ValueError(f"{name!r} is not a name of a table in the folder")
    return name


def _type_name(name: str) -> str:
    try:
        parse_dtype(name)
    except (RowmillError, RecursionError) as error:
        raise ValueError(f"{name[:100]!r} is not a type") from error
    return name


def _moment(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError(f"{text[:100]!r} has no time zone")
    return text


Model = TypeVar("Model")
Number = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Value = Annotated[Any, BeforeValidator(decode_floats)]
Figure = Annotated[float, BeforeValidator(decode_floats)]
TypeName = Annotated[str, AfterValidator(_type_name)]
Inside = Annotated[str, AfterValidator(_inside)]
TableName = Annotated[str, AfterValidator(_table_name)]
Moment = Annotated[str, AfterValidator(_moment)]
Day = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")]
Names = list[str]


class Form(BaseModel):
    """What a file has to say at least; more is left alone. Numbers are numbers, texts texts."""

    model_config = ConfigDict(strict=True, extra="ignore")


class Embedding(Form):
    rows: Count
    dimension: Count


class ColumnForm(Form):
    name: str
    dtype: TypeName
    tags: Names = []
    cardinality: Count = 0
    embedding: Embedding | None = None


class BecameForm(Form):
    pattern: str
    text: str


class DatedForm(Form):
    date: Day
    run_date: str = ""
    timezone: str = ""
    origin: str = ""
    became: dict[str, BecameForm] = {}


@functools.cache
def _adapter(model: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(model)


def parse_document(model: type[Model], data: object, path: Path | str, field: str = "") -> Model:
    """The content of a file as its model; a DataError that names the file and each field that is not what rowmill
    writes. `field`: where `data` stands in the file."""
    try:
        text = json.dumps(data, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError) as error:
        raise make_damage_error(path, field, str(error)) from None
    try:
        document: Model = _adapter(model).validate_json(text, strict=True)  # type: ignore[arg-type]
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        lines = [f"{_format_location(field, problem['loc'])}: {problem['msg']}" for problem in problems]
        shown = list(dict.fromkeys(lines))[:5]
        more = f"; and {len(lines) - 5} more" if len(lines) > 5 else ""
        raise make_damage_error(path, shown[0].partition(":")[0], "; ".join(shown) + more) from None
    return document


def dump_document(document: Any) -> JsonObject:
    """A document that is a dataclass as strict JSON, in the order of its fields."""
    data: JsonObject = encode_floats(asdict(document))
    return data


def make_damage_error(path: Path | str, field: str, why: str) -> DataError:
    """The error for a file in which a field is not right."""
    where = f"{path}: {field}" if field else str(path)
    return DataError(f"{PurePosixPath(path).name} is damaged", where=where, why=why, do=RESTORE)


def _format_location(field: str, loc: tuple[int | str, ...]) -> str:
    """`graph[3].op`: where a problem stands, without what pydantic calls the choices."""
    text = field
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else "" if "[" in part or part == "TagForm" else f".{part}"
    return text.lstrip(".") or "the whole"


def check_columns(columns: list[dict[str, Any]], path: Path, field: str) -> None:
    """A DataError where two columns have one name."""
    try:
        check_names([column["name"] for column in columns if column["name"] != ROW], str(path))
    except DataError as error:
        raise make_damage_error(path, field, error.what) from None


def seal(data: JsonObject) -> dict[str, Any]:
    """The content of a file with the digest of that content."""
    plain = {name: value for name, value in data.items() if name != DIGEST}
    return {**plain, DIGEST: hashlib.sha256(stable_json(plain).encode()).hexdigest()}
