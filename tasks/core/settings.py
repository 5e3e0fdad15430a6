"""The sections of a job that stages take: source, output, run, refit and checks, as checked values with defaults.

Also the parsers of their values: sizes, seconds, days, dates and times of day.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Mapping
from contextlib import suppress
from datetime import date, datetime
from encodings.aliases import aliases
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from tasks.core import storage_traffic
from tasks.core.nvtabular import of_parameter, of_value
from tasks.core.strict_json import JsonObject
from tasks.core.units import nanoseconds
from tasks.errors import JobError, mistakes, near, place_text

# Python's codecs that are not encodings of files: those of host names, and Python's own escapes. `codecs.lookup` gives
# some of them with a hyphen, others with an underscore.
NO_ENCODINGS = (
    "idna",
    "punycode",
    "undefined",
    "unicode-escape",
    "raw-unicode-escape",
    "unicode_escape",
    "raw_unicode_escape",
)
ENCODINGS = sorted(
    {
        "windows-1250",
        "windows-1251",
        "windows-1252",
        "shift-jis",
        "latin-1",
        "utf-8",
        "utf-16",
        *(name.replace("_", "-") for name in aliases.values() if not name.endswith("_codec")),
    }
)
FlowName = Literal["preprocess", "fit", "apply", "refit"]
S = TypeVar("S", bound="Section")
V = TypeVar("V")
STAGES = ("ingest", "statistics", "transform", "shuffle_write")  # in their order


def parse_bytes(text: int | float | str) -> int:
    """Parse a size to bytes: 1GB, 64MiB, 1e9 or a plain number, as Dask reads sizes.

    >>> parse_bytes("1GB"), parse_bytes("64MiB"), parse_bytes("1e9"), parse_bytes(512)
    (1000000000, 67108864, 1000000000, 512)
    """
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        return int(text)
    from dask.utils import parse_bytes as parsed  # here: it takes 0.15 s to import, and few jobs set a size

    number = str(text).strip().replace("_", "")
    try:
        if not number[:1].isdigit() and number[:1] not in ("+", "-", "."):
            raise ValueError(text)  # Dask reads GB as 1GB
        return int(parsed(number))
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not a size: write a number of bytes or 64MiB, 1GB, ..") from None


SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def parse_seconds(text: int | float | str) -> float:
    """Parse a duration to seconds: 10m, 1.5h, 2d, 30s or a plain number.

    >>> parse_seconds("10m"), parse_seconds(0)
    (600.0, 0.0)
    """
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        return float(text)
    number = str(text).strip()
    unit = number.lstrip("0123456789.").strip()
    try:
        return float(number.removesuffix(unit).strip()) * SECONDS[unit]
    except (ValueError, KeyError):
        raise ValueError(f"{text!r} is not a time: write seconds, or 30s, 10m, 2h, 1d") from None


def date_text(value: object) -> object:
    """Convert a date of YAML, `date: 2026-11-22`, to text; other values stay."""
    return value.isoformat() if isinstance(value, (date, datetime)) else value


def clock_text(value: object) -> object:
    """Convert a time of day of YAML to text: without quotes `10:30` is the number 630."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 24 * 60:
        return f"{value // 60:02d}:{value % 60:02d}"
    return value


def null_word(value: object) -> object:
    """Convert the null of YAML, `missing: null`, to the word."""
    return "null" if value is None else value


Missing = Literal["error", "null"]
ClockTime = Annotated[
    str, BeforeValidator(clock_text, json_schema_input_type=str), Field(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")
]
Seconds = Annotated[float, BeforeValidator(parse_seconds, json_schema_input_type=float | str), Field(ge=0, le=10**9)]
Bytes = Annotated[int, BeforeValidator(parse_bytes, json_schema_input_type=int | float | str), Field(ge=1)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]


def date_texts(value: object) -> object:
    """Convert dates of YAML to text, also in lists."""
    return [date_text(one) for one in value] if isinstance(value, list) else date_text(value)


SplitScalar = bool | int | float | str
SplitValue = Annotated[
    SplitScalar | list[SplitScalar] | None,
    BeforeValidator(date_texts, json_schema_input_type=SplitScalar | list[SplitScalar] | None),
]


def some_path(path: V) -> V:
    """Refuse an empty path, also in a list; return what was given."""
    for one in path if isinstance(path, list) else [path]:
        if isinstance(one, str) and not one.strip():
            raise ValueError("the path is empty; write . for the current folder")
    return path


class Section(BaseModel):
    """A part of a job: unknown keys are errors, values are checked when they are set."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_bool_for_number(cls, value: object, info: ValidationInfo) -> object:
        """Refuse true and false for numbers: `files: true` is a mistake, not one file."""
        if isinstance(value, bool):
            kind = cls.model_fields[info.field_name or ""].annotation
            kinds = {kind, *get_args(kind)}
            if kinds & {int, float} and bool not in kinds:
                raise ValueError("needs a number")
        return value


class Sample(Section):
    """Look-alike data, made at `source.path` when nothing is there, and a fifth as many at `source.valid`."""

    name: Literal["toy", "criteo", "ecommerce", "wide"] = Field(description="which look-alike data are made")
    rows: int = Field(1_000_000, ge=1, description="number of rows at source.path")
    seed: Seed = Field(0, description="the same seed gives the same data")
    columns: int | None = Field(None, ge=1, description="number of columns of the sample wide; 100 if empty")
    valid: bool = Field(True, description="false: at source.path only, not at source.valid")
    later: bool = Field(False, description="of the sample ecommerce: the rows at source.valid are of the next month")

    @model_validator(mode="after")
    def _check_later(self) -> Sample:
        if self.later and self.name != "ecommerce":
            raise ValueError(f"later is of the sample ecommerce, not of {self.name}")
        return self


class Downsample(Section):
    """Which rows of the training data stay only in part, and the column that makes up for it."""

    where: str = Field(description="expression for the rows to down-sample: label == 0")
    fraction: float = Field(gt=0, le=1, description="fraction of these rows to keep: 0.1")
    weight: str | None = Field(
        None, description="name of a new column for features: 1 / fraction for these rows, 1 for others"
    )
    seed: Seed = Field(0, description="the same seed keeps the same rows")


class Unique(Section):
    """Of the rows with equal keys one stays, over all files."""

    keys: list[str] = Field(min_length=1, description="columns whose values together occur once; nulls are equal")
    keep: Literal["first", "last"] = Field("first", description="which of the rows with equal keys to keep")
    by: str | None = Field(
        None,
        description="column that defines first and last, such as a time; the order of the files if empty",
    )


class SplitRule(Section):
    """How the rows of one source become train, valid and test."""

    by: Literal["time", "hash", "fraction", "column", "last"] = Field(
        description="time: from a moment on; hash: by the keys in together; fraction: by row; column: by its values; "
        "last: the last rows of each key in together"
    )
    column: str | None = Field(None, description="the time of by: time and by: last; the values of by: column")
    together: list[str] = Field(
        [], description="keys such as [user]: rows with equal ones are in one split (hash, time), or one history (last)"
    )
    valid: SplitValue = Field(
        None,
        description="where valid begins, or its share (time); its share (hash, fraction); its values (column); how "
        "many rows of each key (last)",
    )
    test: SplitValue = Field(None, description="the same for test; either may be left out")
    unit: Literal["s", "ms", "us", "ns"] | None = Field(
        None,
        description="for by: time, where column has numbers and valid and test are times: what the numbers count "
        "since 1970; decided by all values if empty",
    )
    seed: Seed = Field(0, description="for by: hash and by: fraction: the same seed gives the same split")
    look_back: bool | None = Field(
        None,
        description="for by: time and by: last: whether histories and groups of valid and test see the rows of earlier "
        "splits as the past; if empty, with by: last alone",
    )

    @model_validator(mode="after")
    def _check_keys_of_rule(self) -> SplitRule:
        wants_column = self.by in ("time", "column", "last")
        wants_keys = self.by in ("hash", "last")
        if wants_column != (self.column is not None):
            raise ValueError(f"by: {self.by} {'needs a column' if wants_column else 'takes no column'}")
        if wants_keys and not self.together:
            keys = "the keys whose rows stay together" if self.by == "hash" else "the keys whose last rows are meant"
            raise ValueError(f"by: {self.by} needs together: {keys}")
        if self.together and self.by not in ("hash", "last", "time"):
            raise ValueError(f"by: {self.by} takes no together; by: hash goes by it")
        if self.seed and self.by not in ("hash", "fraction"):
            raise ValueError(f"by: {self.by} takes no seed: nothing in it is drawn")
        if self.look_back is not None and self.by not in ("time", "last"):
            raise ValueError(f"by: {self.by} takes no look_back: its splits do not follow one another")
        if self.unit is not None and not self.moments:
            raise ValueError("unit is for by: time with times as valid and test, such as '2026-11-01'")
        values = [value for value in (self.valid, self.test) if value is not None]
        if not values:
            raise ValueError("give valid, test or both")
        if not wants_column:
            self._check_shares(values)
        if self.by == "last" and not all(isinstance(v, int) and not isinstance(v, bool) and v > 0 for v in values):
            raise ValueError("valid and test are numbers of rows of each key, 1 or more")
        if self.by == "time":
            self._check_moments(values)
        if self.by == "column":
            each = [value if isinstance(value, list) else [value] for value in values]
            if both := [str(value) for value in each[0] if len(each) > 1 and value in each[1]]:
                raise ValueError(f"valid and test have both the value {both[0]}: a row is in one split")
        return self

    @staticmethod
    def _check_shares(values: list[Any]) -> None:
        numbers = [value for value in values if _is_share(value)]
        if len(numbers) < len(values) or sum(numbers) >= 1:
            raise ValueError("valid and test are shares of the rows, above 0, and together below 1: 0.1")

    def _check_moments(self, values: list[Any]) -> None:
        shares = [value for value in values if _is_share(value)]
        if shares and len(shares) < len(values):
            raise ValueError("valid and test are both shares of the rows, or both moments")
        if shares:
            return self._check_shares(values)
        texts: list[Any] = [value for value in values if isinstance(value, str)]
        numbers = [value for value in values if isinstance(value, (int, float))]
        if len(texts) + len(numbers) < len(values):
            raise ValueError("valid and test are the moments at which they begin: '2026-11-01'; or shares: 0.1")
        if texts and numbers:
            raise ValueError("valid and test are both texts, or both numbers")
        with suppress(ValueError):  # a text that is not a time is refused where the type of the column is known
            texts = [nanoseconds(text) for text in texts]
        if len(values) == 2 and (texts != sorted({*texts}) or numbers != sorted({*numbers})):
            raise ValueError("test begins after valid: give it the later moment")
        return None

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that the rule makes: train, and valid and test if they are given."""
        return ("train", *(name for name in ("valid", "test") if getattr(self, name) is not None))

    @property
    def looks_back(self) -> bool:
        """Whether operators that look at other rows of a run see the rows of earlier splits as the past."""
        return self.by == "last" if self.look_back is None else self.look_back

    @property
    def by_shares(self) -> bool:
        """Whether valid and test are the last shares of the rows by time."""
        return self.by == "time" and any(_is_share(value) for value in (self.valid, self.test))

    def share_of(self, split: str) -> float | None:
        """Return the share of the rows, or of the keys, that a split gets; None if the values in the rows decide.

        >>> rule = SplitRule(by="fraction", valid=0.1, test=0.2)
        >>> round(rule.share_of("train"), 3), rule.share_of("test")
        (0.7, 0.2)
        """
        if self.by not in ("hash", "fraction") and not self.by_shares:
            return None
        shares = {name: float(getattr(self, name)) for name in self.splits[1:]}
        return shares.get(split, 1 - sum(shares.values()))

    @property
    def moments(self) -> bool:
        """Whether valid and test are times, as texts."""
        return self.by == "time" and any(isinstance(value, str) for value in (self.valid, self.test))

    @property
    def looks_at_all_rows(self) -> bool:
        """Whether a pass over all rows has to say which row is where, before any row is learned from."""
        return self.by == "last" or (self.by == "time" and (self.by_shares or bool(self.together)))


def _is_share(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1


def _need_no_path(schema: JsonObject) -> None:
    """Take `path` out of the keys that a source needs: a table may be in its place."""
    schema["required"] = [name for name in schema.get("required", ()) if name != "path"]


TABLES = ("iceberg", "delta")  # keys of a source that are in place of `path`
TABLE_NAME = r"^[^./\s]+(\.[^./\s]+){2,}$"  # catalog.database.table
SnapshotId = Annotated[int, Field(ge=0, lt=2**63)]


def locate_table(kind: str, name: str) -> str:
    """Make the `path` of a source that is a table: the address of one of Iceberg, the location of one of Delta.

    >>> locate_table("iceberg", "prod.shop.clicks"), locate_table("delta", "s3://lake/clicks")
    ('iceberg://prod/shop.clicks', 's3://lake/clicks')
    """
    return f"iceberg://{name.replace('.', '/', 1)}" if kind == "iceberg" else name


class Source(Section):
    """Where the rows come from and how they are cut."""

    path: str | list[str] = Field(description="file, folder, glob (data/*.parquet) or URL; a recipe brings its own")
    valid: str | list[str] | None = Field(
        None, description="validation data, transformed with what was learned from `source.path`"
    )
    iceberg: str | None = Field(
        None,
        pattern=TABLE_NAME,
        description="in place of path: a table of Iceberg as catalog.database.table, of a catalog in the host's "
        "settings of PyIceberg",
    )
    delta: str | None = Field(None, min_length=1, description="in place of path: folder or URL of a table of Delta")
    snapshot: SnapshotId | None = Field(
        None, description="for iceberg: id of the snapshot to read; the current one if empty"
    )
    version: int | None = Field(None, ge=0, description="for delta: version to read; the newest one if empty")
    as_of: Annotated[str | None, BeforeValidator(date_text, json_schema_input_type=str)] = Field(
        None, description="for iceberg and delta: the table as it was at this time, in UTC: '2026-11-01 06:00'"
    )
    since: Literal["last"] | SnapshotId | None = Field(
        None,
        description="for iceberg: only files that were added after a snapshot, given by its id; last: the one that the "
        "base has read",
    )
    format: Literal["auto", "parquet", "csv", "tsv", "jsonl", "orc", "avro", "arrow"] = Field(
        "auto", description="auto goes by the suffix of the files"
    )
    columns: list[str] | None = Field(None, description="names of a text file without header")
    header: bool = Field(True, description="whether the first line of a CSV or TSV file has the names of the columns")
    schema_: dict[str, str] | None = Field(
        None, alias="schema", description="types by column name, instead of the inferred ones"
    )
    null_values: list[str] = Field([""], description="texts that stand for null in CSV and TSV files")
    missing: Annotated[Missing, BeforeValidator(null_word, json_schema_input_type=Missing)] = Field(
        "error", description="for a column that some files lack: error, or null in the rows of these files"
    )
    delimiter: str | None = Field(None, description="delimiter of a text file, instead of comma or tab")
    skip_rows: int = Field(
        0, ge=0, description="number of lines to skip at the beginning of each text file, before its header"
    )
    decimal: str | None = Field(None, description="decimal separator of a text file, instead of a point")
    quote: str | None = Field(
        None,
        description="quote character around values that contain delimiters or newlines, instead of a double quote; "
        "an empty text if values are never quoted",
    )
    escape: str | None = Field(
        None, description="escape character: a quote, delimiter or newline after it is taken literally"
    )
    skip_initial_space: bool | None = Field(
        None,
        description="whether spaces after delimiters are skipped; if empty, they are if each delimiter of the header "
        "and the first rows has one",
    )
    comment: str | None = Field(None, description="the character that begins a comment line of a text file")
    bad_lines: str = Field(
        "error",
        description="for lines of text that cannot be read: error, skip, or the path of a file that gets them",
    )
    encoding: str = Field(
        "utf-8",
        description="character encoding of a delimited text file: utf-8, utf-16, latin-1, windows-1252, "
        "gbk, shift-jis or any other text encoding of Python",
    )
    partition_size: Bytes | None = Field(
        None, description="decoded bytes; up to 64MB, a thousandth of large data, or on GPUs as their memory allows"
    )
    part_mem_fraction: float | None = Field(
        None,
        gt=0,
        le=1,
        description="in place of partition_size: a partition as a share of one worker's memory, on GPUs of its GPU",
    )
    max_record_bytes: Bytes | None = Field(None, description="bytes of one line of text, at most; 16MiB if empty")
    max_block_bytes: Bytes | None = Field(
        None,
        description="decoded bytes of what a reader has to decode at once (a compressed text file, a block of Avro, a "
        "record batch), at most; a quarter of the memory that a process may use if empty",
    )
    parse_once: bool = Field(
        False,
        description="ingest parses text once and keeps it in scratch files, which later stages read: with "
        "cluster.resources on workers of its own",
    )
    explode: str | None = Field(
        None,
        description="column of lists whose elements become rows, each with the other columns of its row; fields of "
        "structs are events.aid; rows whose list is empty or null are left out and counted",
    )
    keys: list[str] = Field([], description="columns by which rows are grouped together before the operators")
    sort_by: list[str] = Field([], description="order of the rows of a key; there is no order without source.keys")
    filter: str | None = Field(None, description="which rows to keep, as an expression: price > 0 and brand != 'none'")
    strict: bool = Field(
        False,
        description="a cast or parse that fails in filter, split or downsample is an error; else null and counted",
    )
    unique: Unique | None = Field(None, description="keep one row of each key, across all files, after the filter")
    split: SplitRule | None = Field(
        None, description="train, valid and test of these rows, after filter and unique; only train is learned from"
    )
    downsample: Downsample | None = Field(
        None, description="keep a fraction of some training rows, after filter, unique and split; not of source.valid"
    )
    storage_options: str | dict[str, Any] | None = Field(None, description="for URLs: name of the stored options")
    sample: Sample | None = Field(None, description="look-alike data to make if nothing is at source.path")

    model_config = ConfigDict(**Section.model_config, populate_by_name=True, json_schema_extra=_need_no_path)

    _path_is_not_empty = field_validator("path", "valid", mode="before")(some_path)

    @model_validator(mode="before")
    @classmethod
    def _put_table_in_place_of_path(cls, data: object) -> object:
        """Give a source that is a table the `path` that names it."""
        if not isinstance(data, Mapping):
            return data
        named = [key for key in TABLES if isinstance(data.get(key), str)]
        if len(named) > 1:
            raise ValueError("iceberg and delta both say where the rows are: give one of them")
        if not named:
            return data
        (kind,) = named
        path = locate_table(kind, data[kind])
        if data.get("path") not in (None, path):
            raise ValueError(f"path and {kind} both say where the rows are: give one of them")
        return {**data, "path": path}

    @model_validator(mode="after")
    def _check_keys_of_tables(self) -> Source:
        belongs = {"snapshot": ("iceberg",), "version": ("delta",), "as_of": TABLES, "since": ("iceberg",)}
        for key, kinds in belongs.items():
            if getattr(self, key) is not None and self.table not in kinds:
                raise ValueError(f"{key} belongs to {' and '.join(kinds)}; another source has no such state")
        states = [key for key in ("snapshot", "version", "as_of") if getattr(self, key) is not None]
        if len(states) > 1:
            raise ValueError(f"{' and '.join(states)} both say which state of the table is read: give one of them")
        if self.table and self.format not in ("auto", "parquet"):
            raise ValueError(f"format: {self.format} is for files; those of a table are Parquet")
        for key in ("valid", "sample") if self.table else ():
            if getattr(self, key) is not None:
                do = "use split" if key == "valid" else "leave it out"
                raise ValueError(f"{key} is for files, and {self.table} names a table: {do}")
        return self

    @property
    def table(self) -> str:
        """The kind of table that the rows are in, which is also the key that names it; "" for files."""
        return next((kind for kind in TABLES if getattr(self, kind) is not None), "")

    def at(self, path: str | list[str]) -> Source:
        """Return the source of the rows at one path: without validation data, and a table only if `path` is its own."""
        others = {} if path == self.path else dict.fromkeys((*TABLES, "snapshot", "version", "as_of", "since"))
        return self.model_copy(update={"path": path, "valid": None, **others})

    @property
    def splits(self) -> tuple[str, ...]:
        """The sub-folders of the output: train, valid and test, if any; else one split with an empty name."""
        if self.split:
            return self.split.splits
        return ("train", "valid") if self.valid else ("",)

    @property
    def paths(self) -> list[str]:
        """The paths of `path` and `valid`; none for a table that its catalog locates."""
        named = (None if self.iceberg else self.path, self.valid)
        return [path for one in named if one for path in ([one] if isinstance(one, str) else one)]

    def plan_name(self, split: str) -> str:
        """Return the name of the plan of a split: all splits of one source share a plan, whose name is empty."""
        return "" if self.split else split

    @model_validator(mode="after")
    def _one_partition_size(self) -> Source:
        if self.partition_size is not None and self.part_mem_fraction is not None:
            raise ValueError("partition_size and part_mem_fraction both say how large a partition is: give one of them")
        return self

    @field_validator("explode", mode="before")
    @classmethod
    def _one_column(cls, name: object) -> object:
        if isinstance(name, list):
            raise ValueError("name one column: the lists of several columns cannot become rows together")
        if isinstance(name, str) and not name.strip():
            raise ValueError("name a column of lists, or leave it out")
        return name

    @field_validator("decimal")
    @classmethod
    def _check_decimal_sign(cls, sign: str | None) -> str | None:
        if sign is not None and sign not in (".", ","):
            raise ValueError(f"{sign!r} is not a decimal sign: give a point or a comma")
        return sign

    @field_validator("quote", "escape", "comment")
    @classmethod
    def _check_sign(cls, sign: str | None, info: ValidationInfo) -> str | None:
        if sign == "" and info.field_name == "quote":
            return sign
        if sign is not None and (len(sign) != 1 or not sign.isascii() or sign in "\0\r\n"):
            raise ValueError(f"{sign!r} is not a sign of a text file: give one ASCII character, no line end")
        return sign

    @field_validator("encoding")
    @classmethod
    def _check_encoding(cls, name: str) -> str:
        try:
            "a".encode(name)
            known = codecs.lookup(name).name
        except (LookupError, ValueError):  # no codec, one that makes no bytes of text, a name that is none
            known = ""
        if not known or known in NO_ENCODINGS:
            raise ValueError(f"{name!r} is not an encoding of text that Python knows: {near(name, ENCODINGS)}")
        return {"utf-8-sig": "utf-8", "utf-8": "utf-8", "utf-16": "utf-16"}.get(known, name)

    @field_validator("bad_lines")
    @classmethod
    def _check_bad_lines(cls, name: str) -> str:
        if not name.strip() or name.endswith("/"):
            raise ValueError("give error, skip, or the path of a file")
        return name

    @field_validator("delimiter")
    @classmethod
    def _check_delimiter(cls, delimiter: str | None) -> str | None:
        if delimiter is not None and not (0 < len(delimiter) <= 20 and {*delimiter}.isdisjoint('"\r\n\0')):
            raise ValueError(
                f"{delimiter!r} cannot stand between values: give up to 20 characters, no quote, no line end"
            )
        return delimiter


COMPRESSED = {"parquet": ("zstd", "lz4", "gzip"), "orc": ("zstd", "lz4", "gzip"), "arrow": ("zstd", "lz4"), "csv": ()}


class Output(Section):
    """Where the rows go, in which order and in which files."""

    path: str = Field(description="folder to write, or URL of an object store; it is published atomically")
    storage_options: str | dict[str, Any] | None = Field(None, description="for URLs: name of the stored options")
    shuffle: Literal["none", "partition", "worker", "full", "key"] = Field(
        "full",
        description="how far rows move: full over all rows, partition and worker within parts, key by output.keys",
    )
    seed: Seed = Field(0, description="the same seed gives the same order in the same files")
    shuffle_groups: int = Field(8, ge=1, description="for shuffle: worker, number of groups of blocks")
    keys: list[str] = Field([], description="for shuffle: key, columns whose rows with equal values go into one file")
    sort_by: list[str] = Field([], description="for shuffle: key, the order of the rows of a key")
    files: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="number of files; if empty, chosen from the rows: 8, or more of about 512 MB each",
    )
    files_per_worker: int | None = Field(None, ge=1, description="in place of files: number of files per worker")
    rows_per_file: int | None = Field(None, ge=1, description="in place of files: rows of each file but the last")
    format: Literal["parquet", "arrow", "csv", "orc"] = Field("parquet", description="format of the files")
    compression: Literal["auto", "snappy", "zstd", "lz4", "gzip", "none"] = Field(
        "auto",
        description="codec of the files; auto: that of each column by what it saves",
    )
    row_group_size: int | None = Field(None, ge=1, description="rows; 1,000,000 on the CPU, 4,000,000 with cuDF")
    partition_on: list[str] = Field([], description="columns whose values name folders: country=DE/part-00000.parquet")
    on_existing: Literal["fail", "replace", "version"] = Field(
        "fail",
        description="when there is an output already: fail, replace it, or write v0001, v0002, .. next to each other",
    )
    keep_versions: int | None = Field(
        None,
        ge=1,
        description="for on_existing: version: number of newest versions to keep; all if empty",
    )
    metadata_file: bool = Field(False, description="write _metadata: the footers of all Parquet files in one")
    iceberg: str | None = Field(
        None, pattern=TABLE_NAME, description="table of Iceberg that each version is added to: catalog.database.table"
    )
    delta: str | None = Field(
        None, min_length=1, description="folder of a table of Delta, around path, that each version is added to"
    )
    mode: Literal["append", "replace_partition"] | None = Field(
        None,
        description="for iceberg and delta: append (default), or replace_partition: the partitions that the new rows "
        "are in lose their older rows",
    )

    _path_is_not_empty = field_validator("path", mode="before")(some_path)

    @property
    def chooses_files(self) -> bool:
        """Whether the number of files is left to the run."""
        return self.files is None and self.files_per_worker is None and self.rows_per_file is None

    @model_validator(mode="after")
    def _check_keys_fit_together(self) -> Output:
        named = [k for k in ("files", "files_per_worker", "rows_per_file") if getattr(self, k) is not None]
        if len(named) > 1:
            raise ValueError(f"{' and '.join(named)} contradict each other: give one")
        if self.shuffle == "key" and not self.keys:
            raise ValueError("shuffle: key needs output.keys")
        for name in ("keys", "sort_by") if self.shuffle != "key" else ():
            if getattr(self, name):
                raise ValueError(f"{name} belongs to shuffle: key; {self.shuffle} would not look at it")
        if self.keep_versions is not None and self.on_existing != "version":
            raise ValueError("keep_versions belongs to on_existing: version")
        if self.shuffle_groups != 8 and self.shuffle != "worker":
            raise ValueError(f"shuffle_groups belongs to shuffle: worker; {self.shuffle} would not look at it")
        if self.row_group_size is not None and self.format in ("csv", "orc"):
            raise ValueError(f"row_group_size belongs to format: parquet or arrow, not to {self.format}")
        if self.compression not in ("auto", "snappy", "none", *COMPRESSED[self.format]):
            known = " or ".join(COMPRESSED[self.format])
            why = f"are compressed with {known}, or not at all" if known else "are never compressed"
            raise ValueError(f"files of format: {self.format} {why}: compression {self.compression} has no effect")
        if self.metadata_file and self.format != "parquet":
            raise ValueError(f"metadata_file belongs to format: parquet, not to {self.format}")
        return self

    @property
    def table(self) -> str:
        """The kind of table that the output is added to, which is also the key that names it; "" for none."""
        return next((kind for kind in TABLES if getattr(self, kind) is not None), "")

    @property
    def table_name(self) -> str:
        """The name or the location of the table."""
        return self.iceberg or self.delta or ""

    @model_validator(mode="after")
    def _check_keys_of_tables(self) -> Output:
        if self.iceberg is not None and self.delta is not None:
            raise ValueError("iceberg and delta both name a table: give one of them")
        if not self.table:
            if self.mode is not None:
                raise ValueError("mode belongs to iceberg and delta: no table is named")
            return self
        if self.on_existing != "version":
            raise ValueError(
                f"{self.table} belongs to on_existing: version: the files of the table are those of the versions, so "
                "that none may be replaced"
            )
        if self.keep_versions is not None:
            raise ValueError(f"keep_versions would remove files of the table that {self.table} names: leave it out")
        if self.format != "parquet":
            raise ValueError(f"the files of a table are Parquet, not {self.format}")
        if self.iceberg is not None and self.partition_on:
            raise ValueError(
                "partition_on leaves its columns out of the files, and a table of Iceberg takes the values of its "
                "partitions from them: leave partition_on out"
            )
        if self.delta is not None and self.mode == "replace_partition" and not self.partition_on:
            raise ValueError(
                "mode: replace_partition of a table of Delta needs partition_on, the columns of its partitions"
            )
        return self


def collector(schemes: tuple[str, ...]) -> BeforeValidator:
    """Return a validator of addresses of a collector: URLs of these schemes, and files (`file:path`)."""

    def check_address(address: str | None) -> str | None:
        scheme, colon, rest = (address or "").partition("://")
        if colon and (scheme not in schemes or not rest):  # the rest may be a secret
            raise ValueError(f"{scheme}:// is not for a collector: write {schemes[0]}://host:port or file:path")
        return some_path(address)

    return BeforeValidator(check_address)


def collector_file(address: str) -> str | None:
    """Return the path of a collector that is a file; None for a URL.

    >>> collector_file("file:run.prom"), collector_file("/data/lineage.jsonl"), collector_file("otlp://host:4318")
    ('run.prom', '/data/lineage.jsonl', None)
    """
    return None if "://" in address else address.removeprefix("file:")


class StoragePrice(Section):
    """What a storage charges, in any currency."""

    gb: float = Field(0.0, ge=0, allow_inf_nan=False, description="price of 10^9 bytes that are read")
    thousand_requests: float = Field(0.0, ge=0, allow_inf_nan=False, description="price of 1,000 requests")

    def compute_cost(self, traffic: Mapping[str, float]) -> float:
        """The price of requests and bytes, by `storage_traffic.NAMES`.

        >>> StoragePrice(gb=0.02, thousand_requests=0.4).compute_cost({"storage_gets": 500, "storage_bytes_read": 1e9})
        0.22
        """
        requests = sum(traffic.get(name, 0) for name in storage_traffic.REQUESTS)
        return self.gb * traffic.get("storage_bytes_read", 0) / 10**9 + self.thousand_requests * requests / 1000


class Run(Section):
    """How the work is done; only `date` and `timezone`, which say what is read, change rows of the output."""

    exchange: Literal["auto", "memory", "disk"] = Field("auto", description="where rows wait for their file")
    scratch: str | None = Field(None, description="folder for the work in progress, instead of one next to the output")
    retries: int = Field(2, ge=0, le=20, description="how often a stage is retried after a temporary failure")
    stalled_after: int = Field(
        300, ge=1, description="seconds in which a stage waits, and no task runs or ends, until it is tried again"
    )
    min_partition_size: Bytes = Field(16 * 2**20, description="bytes down to which partitions are halved for memory")
    lock: Literal["fail", "wait"] = Field("fail", description="what to do while another run works on the same output")
    keep_replaced: Seconds = Field(
        600.0, description="with on_existing: replace, how long a replaced output is kept for its readers"
    )
    report: bool = Field(True, description="sample the workers, and put an HTML report into the output")
    price_per_hour: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="hourly price of all machines of the run, for its cost"
    )
    storage_price: StoragePrice | None = Field(None, description="what the storages of sources charge, for their cost")
    profile: bool | None = Field(
        None,
        description="profile each column that is read, over all rows, for the gate; if empty: where the job has base, "
        "checks, contract or on_existing: version",
    )
    performance_report: bool = Field(False, description="put Dask's own report into the output: a second and 2 MB more")
    keep_partials: bool = Field(
        True,
        description="save what a refit needs, not only what apply needs; without it nothing can be refitted",
    )
    date: Annotated[str, BeforeValidator(date_text, json_schema_input_type=str)] | None = Field(
        None, description="the date that {date} and {hour} of paths and filters mean, instead of the scheduled time"
    )
    timezone: str = Field("UTC", description="time zone of {date} and {hour}, such as Europe/Berlin")
    ready_by: ClockTime | None = Field(
        None,
        description="time of day, such as 06:00, by which a run should be ready; it says so if it is not",
    )
    ask_timeout: Seconds = Field(
        72_000.0,
        description="how long a question of the gate is open; after that the run is stopped; 20h by default",
    )
    if_empty: Literal["fail", "skip"] = Field(
        "fail", description="when there are no data: a failed run, or a completed one that writes nothing"
    )
    lineage: Annotated[str | None, collector(("http", "https"))] = Field(
        None, description="where OpenLineage events of the run go: http://host:port, or file:path, a line for each"
    )
    metrics: Annotated[str | None, collector(("otlp", "otlps"))] = Field(
        None, description="where the figures of the run go at its end: otlp://host:port, or file:path.prom"
    )


def parse_days(text: int | str) -> int:
    """Parse a number of days: 365d, 52w or a plain number.

    >>> parse_days("365d"), parse_days("52w"), parse_days(30)
    (365, 364, 30)
    """
    number = str(text).strip()
    days = {"d": 1, "w": 7}.get(number[-1:], 0)
    count = number[:-1] if days else number
    if isinstance(text, (bool, float)) or not count.isdecimal():
        raise ValueError(f"{text!r} is not a number of days: write 365d or 52w")
    return int(count) * (days or 1)


Days = Annotated[int, BeforeValidator(parse_days, json_schema_input_type=int | str), Field(ge=1, le=100_000)]


NO_BASE = "none"  # of the key `base`: to learn from the source alone


class Refitting(Section):
    """How a job learns from new rows on top of what its base has learned.

    A further key is the name of an operator, or an entry of features, with merge or freeze: `Normalize: freeze`,
    `features[2]: merge`. `flows.job` checks these names, which it alone knows.
    """

    model_config = ConfigDict(**{**Section.model_config, "extra": "allow"})

    forget: Days | None = Field(
        None, description="drop the counts of values without an id that have not been seen for this long: 365d"
    )
    all: bool = Field(False, description="learn again, from these rows alone, all but frozen steps; ids stay")
    again: bool = Field(False, description="also files that the base has learned already")
    learn_from: str | list[str] | None = Field(
        None, description="older rows, from which steps that the base lacks learn first"
    )

    @property
    def settings(self) -> dict[str, str]:
        """The further keys: merge or freeze, by operator or entry."""
        return dict(self.model_extra or {})


Level = Literal["warn", "stop", "ask"]


class Check(Section):
    """One check of the gate: what its figure may be, what follows if it is more, and for which columns."""

    threshold: float | None = Field(
        None, ge=0, description="the largest figure that passes; from the last good nights if empty"
    )
    level: Literal["warn", "stop", "ask", "off"] | None = Field(None, description="checks.on_finding if empty")
    columns: list[str] | None = Field(None, min_length=1, description="columns that are checked; all if empty")

    @field_validator("threshold")
    @classmethod
    def _finite(cls, threshold: float | None) -> float | None:
        if threshold is not None and not math.isfinite(threshold):
            raise ValueError(f"{threshold} is not a threshold: did you mean level: 'off'? It switches a check off")
        return threshold


WITHOUT_FIGURE = ("constant", "swapped", "duplicated", "columns", "contract")  # checks that hold or do not
OF_ROWS = ("rows", "duplicated", "repeated")
OF_STEPS = ("out_of_vocabulary", "unmatched", "failed_casts")


class Checks(Section):
    """What the gate does with a night that differs from its contract or from the last good nights.

    A check that has a threshold or a level of its own counts from the first night on; any other only warns until
    `nights` good versions are there to compare with.
    """

    on_finding: Level = Field("warn", description="warn and publish, stop, or ask whether to publish")
    nights: int = Field(7, ge=3, le=60, description="number of good versions before derived thresholds count")
    rows: Check = Field(Check(), description="rows, against the number that the nights before predict")
    nulls: Check = Field(Check(), description="share of nulls")
    out_of_vocabulary: Check = Field(Check(), description="share of values that have no id")
    unmatched: Check = Field(Check(), description="share of rows without a match in JoinExternal")
    failed_casts: Check = Field(Check(), description="share of values that could not be cast")
    distinct: Check = Field(Check(), description="number of distinct values")
    extremes: Check = Field(Check(), description="least and largest value")
    quantiles: Check = Field(Check(), description="the quantiles 5, 25, 50, 75 and 95 %")
    mean: Check = Field(Check(), description="mean, in standard deviations")
    l_infinity: Check = Field(Check(), description="largest change of the share of one value or bin")
    jensen_shannon: Check = Field(Check(), description="Jensen-Shannon distance")
    psi: Check = Field(Check(), description="population stability index")
    new_values: Check = Field(Check(), description="share of rows with values that no earlier night had")
    vanished_values: Check = Field(Check(), description="share that values had on every earlier night which are gone")
    repeated: Check = Field(Check(), description="share of rows that are equal to an earlier row of the run")
    associations: Check = Field(Check(), description="loss of association with other columns")
    constant: Check = Field(Check(), description="one value in all rows of a column that had several")
    swapped: Check = Field(Check(), description="two columns, each of which looks as the other did")
    duplicated: Check = Field(Check(), description="a whole delivery that came twice; a part of one: repeated")
    columns: Check = Field(Check(), description="columns that are new, missing or of another type")
    contract: Check = Field(Check(level="stop"), description="what the contract does not allow")

    @model_validator(mode="after")
    def _only_what_a_check_has(self) -> Checks:
        for name in Checks.model_fields:
            check = getattr(self, name)
            if name in WITHOUT_FIGURE and check.threshold is not None:
                raise ValueError(f"{name} takes no threshold: it finds something or not; give it a level")
            if name in OF_ROWS and check.columns is not None:
                raise ValueError(f"{name} takes no columns: it looks at whole rows")
        return self

    def check(self, name: str) -> Check:
        """Return the settings of a check by its name."""
        check: Check = getattr(self, name)
        return check


def make_section(section: type[S], values: JsonObject, where: str, known_as: str = "") -> S:
    """Make a section of plain values; what pydantic refuses becomes one JobError with near names.

    `known_as` is the NVTabular function or class with these parameters: its parameter names are refused with a hint.
    """
    try:
        return section(**values)
    except ValidationError as error:
        lines = []
        for one in mistakes(error, values):
            place = place_text((where, *one.place))
            name = str(one.place[-1]) if one.place else ""
            if one.kind == "unknown":
                known = [f.alias or n for n, f in section.model_fields.items()]
                lines.append(f"{place} is not an option: {of_parameter(known_as, name) or near(name, known)}")
                continue
            text = one.text
            if hint := of_value(known_as, name, values):
                text = f"{text.partition(': did you mean')[0]}: {hint}"
            lines.append(f"{place}{' ' if one.kind == 'missing' else ': '}{text}")
        raise JobError("; ".join(lines), where=where) from None
