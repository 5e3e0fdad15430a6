"""The forms of what rowmill writes beside its data: manifests, fitted workflows, states.

A folder may come from anywhere. What one of these files says is checked field by field before anything is done with it;
an error names the file and the field.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from tasks.core.dtypes import parse_dtype
from tasks.core.schema import ROW, Tags, check_names
from tasks.core.versions import VALUE_RULES
from tasks.errors import DataError, RowmillError

RESTORE = "restore the folder from where it came, or make it again"
FORMER, NAME = "millrace", "rowmill"  # keys of the version in documents, and ends of the names of staging folders
DIGEST = "digest"  # of the file's own content, all other fields


def _inside(path: str) -> str:
    parts = path.split("/")
    if not path or path.startswith("/") or "\\" in path or "\0" in path or {"", ".", ".."} & {*parts}:
        raise ValueError(f"{path!r} is no path inside of the folder")
    return path


def _table_name(name: str) -> str:
    if not re.fullmatch(r"[\w+-][\w.+-]*\.vocab", name):
        raise ValueError(f"{name!r} is no name of a table in the folder")
    return name


def _type_name(name: str) -> str:
    try:
        parse_dtype(name)
    except (RowmillError, RecursionError) as error:
        raise ValueError(f"{name[:100]!r} is no type") from error
    return name


def _moment(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError(f"{text[:100]!r} has no time zone")
    return text


Count = Annotated[int, Field(ge=0)]
Names = list[str]


class Form(BaseModel):
    """What a file has to say at least; more is left alone. Numbers are numbers, texts texts."""

    model_config = ConfigDict(strict=True, extra="ignore")


class Embedding(Form):
    rows: Count
    dimension: Count


class ColumnForm(Form):
    name: str
    dtype: Annotated[str, AfterValidator(_type_name)]
    tags: Names = []
    cardinality: Count = 0
    embedding: Embedding | None = None


class PartForm(Form):
    path: Annotated[str, AfterValidator(_inside)]
    rows: Count
    bytes: Count
    xxh3_128: str


class FooterForm(Form):
    path: Annotated[str, AfterValidator(_inside)]
    bytes: Count
    xxh3_128: str


class RowsForm(Form):
    in_: Count = Field(alias="in")
    dropped: Count
    added: Count
    out: Count


class StageForm(Form):
    seconds: float
    rows: Count
    bytes: Count
    retries: Count = 0
    halved: Count = 0


class OutputForm(Form):
    shuffle: str
    files: Count
    format: Literal["parquet", "arrow", "csv", "orc"]
    partition_on: Names = []


class BecameForm(Form):
    pattern: str
    text: str


class DatedForm(Form):
    date: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")]
    run_date: str = ""
    timezone: str = ""
    origin: str = ""
    became: dict[str, BecameForm] = {}


class BaseForm(Form):
    version: str
    path: str = ""
    state: str = ""
    rows: Count = 0


class ManifestForm(Form):
    format: Annotated[int, Field(ge=1)]
    rowmill: str = ""
    run: str = ""
    created: str = ""
    rows: RowsForm
    parts: list[PartForm]
    footers: list[FooterForm] = []
    profile: list[FooterForm] = []
    schema_: list[ColumnForm] = Field(alias="schema")
    labels: Names = []
    left_out: Names = []
    dated: DatedForm | None = None
    checks: dict[str, Any] = {}
    contract: dict[str, Any] = {}
    base: BaseForm | Literal["none"] | None = None
    output: OutputForm
    seed: int = 0
    permutation: int = 0
    versions: dict[str, str] = {}
    engine: str = ""
    fingerprints: dict[str, str] = {}
    exchange: str = ""
    seconds: float
    stages: dict[str, StageForm]
    gate: Literal["pass", "warn", "published by hand"] | None = None
    digest: str = ""


class TagForm(Form):
    tag: Literal[tuple(tag.value for tag in Tags)]  # type: ignore[valid-type]


class NodeForm(Form):
    kind: Literal["pick", "apply", "join", "drop"]
    parents: list[Count]
    op: dict[str, Any] | None = None
    selection: list[str | Names | TagForm] = []
    name: str = ""


class NightForm(Form):
    day: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")]
    rows: Count
    files: Count
    ids: dict[str, Count] = {}
    rowmill: str = ""


class TableForm(Form):
    table: Annotated[str, AfterValidator(_table_name)]
    rows: Count
    sha256: str


class HistoryForm(Form):
    rows: Count
    nights: list[NightForm]
    files: TableForm | None = None


class DiscardedForm(Form):
    who: str
    when: str
    why: str = ""


class RemovedNightForm(Form):
    version: str
    date: str
    run_date: str
    created: str
    run: str


class RemovedForm(Form):
    format: Annotated[int, Field(ge=1)]
    nights: list[RemovedNightForm]


class WorkflowForm(Form):
    format: Annotated[int, Field(ge=1)] = 1
    graph: Annotated[list[NodeForm], Field(min_length=1)]
    schema_: list[ColumnForm] = Field(alias="schema")
    output: list[ColumnForm] = []
    source: dict[str, Any] = {}
    dated: DatedForm | None = None
    state: str = ""
    ancestors: list[str] = []
    ids_since: dict[str, int] = {}
    history: HistoryForm | None = None
    digest: str = ""


class FileForm(Form):
    file: Literal["partials.json", "changes.json"]
    sha256: str


class StateForm(Form):
    format: Annotated[int, Field(ge=1)]
    rules: Annotated[int, Field(ge=1, le=VALUE_RULES)] = 1
    fitted: dict[str, dict[str, Any]]
    partials: FileForm | None = None
    changes: FileForm | None = None


class StateInOneForm(Form):
    """A state of the formats 1 to 3."""

    format: Annotated[int, Field(ge=1)]
    fitted: dict[str, dict[str, Any]]
    partials: dict[str, dict[str, Any]] = {}


class PartialsForm(Form):
    format: Annotated[int, Field(ge=1)]
    rows: Count = 0
    partials: dict[str, dict[str, Any]]


class OldAndNewForm(Form):
    old: Count
    new: Count


class ChangeForm(Form):
    op: str
    columns: Names
    mode: Literal["merged", "appended", "frozen", "new"]
    why: str


class ChangesForm(Form):
    format: Annotated[int, Field(ge=1)]
    base: str
    rows: OldAndNewForm
    steps: dict[str, ChangeForm]


Figure = int | float | dict[str, str]  # {"float": "inf"} and the like stand for what JSON has not


class ColumnProfileForm(Form):
    name: str
    type: Annotated[str, AfterValidator(_type_name)]
    rows: Count
    nulls: Count
    distinct: Figure = 0.0
    distinct_error: Figure = 0.0
    minimum: Figure | str | None = None
    maximum: Figure | str | None = None
    mean: Figure | None = None
    std: Figure | None = None
    infinite: Count = 0
    bins: list[Annotated[list[Count], Field(min_length=2, max_length=2)]] | None = None
    sampled: Annotated[int, Field(ge=1)] = 1
    buckets: list[Count] | None = None
    top: list[Annotated[list[Any], Field(min_length=2, max_length=2)]] = []
    top_exact: bool = False


class StepProfileForm(Form):
    key: str
    op: str
    columns: Names
    rows: Count
    out_of_vocabulary: Count | None = None
    unmatched: Count | None = None
    failed_casts: Count = 0


class ProfileForm(Form):
    format: Annotated[int, Field(ge=1)]
    rows: Count
    columns: list[ColumnProfileForm]
    steps: list[StepProfileForm] = []
    seconds: float = 0.0


class FindingForm(Form):
    column: str
    check: str
    level: Literal["warn", "stop", "ask"]
    text: str


class VerdictForm(Form):
    verdict: Literal["pass", "warn", "stop", "ask"]
    findings: list[FindingForm]


class AnswerForm(Form):
    answer: Literal["publish", "discard"]
    who: str
    when: Annotated[str, AfterValidator(_moment)]


class AcceptedForm(AnswerForm):
    stage: Literal["statistics", "commit"]
    of: str
    findings: list[FindingForm]


class GateForm(Form):
    format: Annotated[int, Field(ge=1)]
    gate: Literal["pass", "warn", "stop", "ask", "published by hand"]
    verdicts: dict[Literal["statistics", "commit"], VerdictForm]
    accepted: list[AcceptedForm] = []


class QuestionForm(Form):
    format: Annotated[int, Field(ge=1)]
    flow: Literal["preprocess", "fit", "apply", "refit"]
    parameters: dict[str, Any]
    date: str | None
    run: str
    deployment: str | None
    stage: Literal["statistics", "commit"]
    verdict: VerdictForm
    of: str
    key: str
    output: str
    folder: str
    search: Names = []
    asked_at: Annotated[str, AfterValidator(_moment)]
    until: Annotated[str, AfterValidator(_moment)]
    answer: AnswerForm | None


FORMS: dict[str, type[Form]] = {
    "gate": GateForm,
    "question": QuestionForm,
    "manifest": ManifestForm,
    "profile": ProfileForm,
    "workflow": WorkflowForm,
    "state": StateForm,
    "state_in_one": StateInOneForm,
    "partials": PartialsForm,
    "changes": ChangesForm,
    "table": TableForm,
    "discarded": DiscardedForm,
    "removed": RemovedForm,
}


def check_form(data: Any, form: str, path: Path, field: str = "") -> None:
    """A DataError that names the file and each field that is not what rowmill writes; `field`: where `data` stands."""
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError) as error:
        raise damaged(path, field, str(error)) from None
    try:
        FORMS[form].model_validate(data)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        lines = [f"{_place(field, problem['loc'])}: {problem['msg']}" for problem in problems]
        shown = list(dict.fromkeys(lines))[:5]
        more = f"; and {len(lines) - 5} more" if len(lines) > 5 else ""
        raise damaged(path, shown[0].partition(":")[0], "; ".join(shown) + more) from None


def is_former(data: Any) -> bool:
    """Whether a document names the version of millrace, the former name, that wrote it."""
    return isinstance(data, Mapping) and FORMER in data and NAME not in data


def refuse_former(data: Any, path: Path) -> None:
    """A DataError for a document that was written under the former name."""
    if is_former(data):
        raise DataError(
            f"{path.name} was written under the former name of {NAME}, {FORMER}",
            where=str(path),
            do=f"convert it, data files stay as they are: {NAME} convert {path.parent}",
        )


def damaged(path: Path, field: str, why: str) -> DataError:
    """The error for a file in which a field is not right."""
    where = f"{path}: {field}" if field else str(path)
    return DataError(f"{path.name} is damaged", where=where, why=why, do=RESTORE)


def _place(field: str, loc: tuple[int | str, ...]) -> str:
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
        raise damaged(path, field, error.what) from None


def sealed(data: Mapping[str, Any], text: str) -> dict[str, Any]:
    """The content of a file with the digest of that content, given as JSON with sorted keys."""
    return {**data, DIGEST: hashlib.sha256(text.encode()).hexdigest()}
