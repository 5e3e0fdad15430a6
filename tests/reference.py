"""Reference pages as Markdown, made of docstrings, parameters and models: operators, expressions, keys of a job.

`python -m tests.reference` writes them: two pages, the tables of names of NVTabular, the table of keys of a job, and
the names for type checkers.
"""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

import flows
import tasks
from flows.commands.inspect import NEEDED, format_required_parameters, on_refit, operators, parameters_of, refit_rule
from flows.job.json_schema import Schema, job_schema
from tasks.core.nvtabular import DIFFERENCES, WRITE
from tasks.engines.expression import syntax
from tasks.engines.expression.functions import FUNCTIONS, GROUPS, Example, Function
from tasks.ops.base import Learned, Operator
from tasks.ops.docstrings import docstring_of

COMMAND = "python -m tests.reference"
HEAD = f"""<!-- made by: {COMMAND} -->
# Operators

An operator is written `columns >> Operator(..)` in Python and `{{op: Operator, ..}}` in a job. The examples run as
tests. *Learns* means that `fit` reads data for the operator. It also says what a refit does with the learned values:
*merged* (equal to a fit of all rows), *appended* (ids stay, new values are appended), *frozen* (unchanged until
everything is learned anew) or *read again* (side tables). *Group* means that a nested list of columns is treated as
one. `rowmill ops NAME` shows the full documentation of one operator.

A `JobError` says what to change in the job, a `DataError` what to change in the data. Every operator raises a
`DataError` for a column of a type that it does not take, and a `JobError` for a parameter that does not exist.

You can use a class of your own module as an operator: name its import path in `op:`. [A package](OWN_OPERATOR.md)
registers its operators by name. For users of NVTabular there is [a table of names](NVTABULAR.md), for contributors
[how to add an operator](../README.md#how-to-add-an-operator).
"""


EXPRESSIONS_HEAD = f"""<!-- made by: {COMMAND} -->
# Expressions
"""
FUNCTIONS_RULE = """Arguments may be named: `parse_number(price, decimal=",")`. Signs, formats, patterns, zones, units
and places are literals. Null gives null where nothing else is said. The examples run as tests on both engines."""


# What people look for, by the words that they look for; names of operators become links.
TASKS = {
    "impute missing values, with a missing-value indicator": "FillMissing, FillMedian; `add_binary_cols`",
    "standardize (z-score), min-max scale": "Normalize, NormalizeMinMax",
    "log-transform skewed counts and amounts": "LogOp",
    "clip or winsorize outliers": "Clip",
    "bin, bucketize, discretize": "Bucketize, QuantileBucketize",
    "encode categories as ids (label encoding, vocabulary)": "Categorify",
    "out-of-vocabulary values, cold start": "Categorify: `num_buckets` ids for unseen and rare values",
    "feature hashing (the hashing trick)": "HashBucket",
    "feature crosses, multi-column ids": "Cross, HashedCross, Categorify of a group",
    "target encoding (mean encoding, historical CTR)": "TargetEncoding",
    "count encoding, statistics by group joined back to the rows": "JoinGroupby",
    "group by: one row per session or user, sequences as lists": "Groupby; sessions from times: "
    "[a recipe](../../flows/README.md#recipes)",
    "the past of each row as a list, sequences for SASRec or BERT4Rec": "History",
    "truncate and pad sequences": "ListSlice",
    "lag, lead, differences, moving averages (window functions)": "Lag, DifferenceLag, Rolling",
    "join a side table (lookup, enrichment)": "JoinExternal",
    "parts of dates and times": "DateParts",
    "split text into columns": "SplitText",
    "compute a column, derive a label": "Lambda with an [expression](EXPRESSIONS.md); MapPartitions with a function",
    "filter rows, drop nulls": "Filter, Dropna",
    "explode lists: one row per element, events of a session": "no operator: "
    "[`source.explode`](../../flows/KEYS.md#sourceexplode)",
    "deduplicate rows": "no operator: [`source.unique`](../../flows/KEYS.md#sourceunique)",
    "down-sample negatives, with weights": "no operator: [`source.downsample`](../../flows/KEYS.md#sourcedownsample)",
    "negative sampling of items that a user has not seen": "not here: in the training loop",
    "train, valid and test, leave one out": "no operator: [`source.split`](../../flows/SPLITS.md)",
    "reduce dimensions": "PCA",
    "downcast to smaller types": "ReduceDtypeSize",
    "profile columns": "DataStats",
    "name and tag columns for models": "Rename, AddTags, AddMetadata",
    "similarity of two items by their features": "ColumnSimilarity",
    "drop columns with few distinct values": "DropLowCardinality",
    "check lists: ids and weights of one length, shortest and longest": "EqualLengths, ValueCount",
    "regress a target on every pair of columns": "PairwiseRegression",
}


def operators_markdown() -> str:
    rows = [
        f"| {name} | {on_refit(cls)} | "
        f"{', '.join(f'`{p}`' for p in cls.model_fields)} | {docstring_of(cls).summary.replace('|', chr(92) + '|')} |"
        for name, cls in operators().items()
    ]
    return "\n".join(["| operator | learns, on refit | parameters | what it does |", "|---|---|---|---|", *rows])


def reference_page() -> str:
    """The whole page: a line of links, two tables, then a section for each operator, expressions and infinities."""
    named = ["By task", *operators(), "Expressions", "Infinities"]
    links = " · ".join(f"[{name}](#{name.lower().replace(' ', '-')})" for name in named)
    sections = [section(name, cls) for name, cls in operators().items()]
    table = ["", "## All operators", "", operators_markdown()]
    return "\n".join([HEAD, links, by_task(), *table, *sections, expressions(), infinities()])


def by_task() -> str:
    """The operators by what people want to do."""
    pattern = re.compile(rf"\b({'|'.join(operators())})\b")
    rows = [f"| {task} | {pattern.sub(_link, answer)} |" for task, answer in TASKS.items()]
    return "\n".join(["", "## By task", "", "| to | use |", "|---|---|", *rows])


def _link(name: re.Match[str]) -> str:
    return f"[{name[0]}](#{name[0].lower()})"


def infinities() -> str:
    """What operators do with infinities, in the sentences of their docstrings."""
    rows = {name: of_infinities(cls) for name, cls in operators().items()}
    text = (
        "NaN is null everywhere. Plus and minus infinity are values. As a key of a group, a join or a run an infinity\n"
        "is a value like any other; operators that the table does not name pass it through."
    )
    table = [f"| {name} | {_cell(_prose(rule))} |" for name, rule in rows.items() if rule]
    return "\n".join(["", "## Infinities", "", text, "", "| operator | an infinity |", "|---|---|", *table])


def of_infinities(cls: type[Operator]) -> str:
    """The sentences of an operator's notes that speak of infinities, errors aside."""
    rules = [rule for rule in docstring_of(cls).notes.split("\n\n") if not rule.startswith("Errors: ")]
    sentences = [one for rule in rules for one in re.split(r"(?<=\.) (?=[A-Z])", " ".join(rule.split()))]
    return " ".join(sentence for sentence in sentences if re.search(r"\b[Ii]nfinit", sentence))


def expressions() -> str:
    """Where the rule of the language of Lambda, Filter and source.filter is."""
    text = (
        "`Lambda`, `Filter` and `source.filter` take expressions: `where(price > 0, log(price), None)`. Nulls, types, "
        f"precedence and all {len(FUNCTIONS)} functions, each with an example that runs as a test, are on "
        "[a page of their own](EXPRESSIONS.md)."
    )
    return "\n".join(["", "## Expressions", "", *textwrap.wrap(text, 120, break_long_words=False)])


def expressions_page() -> str:
    """The page of the language of expressions: its rules, then every function with its examples."""
    groups = [line for title, group in GROUPS.items() for line in _group(title, group)]
    rules = inspect.cleandoc(syntax.__doc__ or "").split("\n")
    shown = [line if line.startswith("    ") else _prose(line) for line in rules]
    names = " · ".join(f"[{title}](#{title.lower().replace(' ', '-')})" for title in GROUPS)
    return "\n".join([EXPRESSIONS_HEAD, *shown, "", "## Functions", "", FUNCTIONS_RULE, "", names, *groups])


def _group(title: str, group: Sequence[Function]) -> list[str]:
    rows = []
    for function in group:
        marks = "" if function.runs == "engine" else f" *{function.runs}*"
        rows.append(
            f"| `{_cell(function.signature)}`{marks} | {_prose(function.result)} | {_cell(_prose(function.rule))} |"
        )
    examples = [line for function in group for example in function.examples for line in _shown(example)]
    table = ["| function | result | what it does |", "|---|---|---|", *rows]
    return ["", f"### {title}", "", *table, "", "```text", *examples, "```"]


def _shown(example: Example) -> list[str]:
    """An example as Python would show it: the columns, the expression, what comes out."""
    text, columns, expected = example
    values = ", ".join(f"{name}={_plain(value)}" for name, value in columns.items())
    return [values, f"    {text}  ->  {_plain(expected)}"]


def _plain(values: object) -> str:
    if isinstance(values, list):
        return f"[{', '.join(map(_plain, values))}]"
    return values.isoformat(" ") if isinstance(values, datetime) else repr(values)


def section(name: str, cls: type[Operator]) -> str:
    """Rule, accepted types, parameters, the line in a job, and the example of one operator."""
    text = docstring_of(cls)
    takes = ", ".join(sorted(cls.takes)) + (", and lists of these" if cls.leaves else "")
    learns = [f"learns; a refit: {refit_rule(cls)}"] if issubclass(cls, Learned) else []
    marks = [f"takes {takes}", *(["group"] if cls.grouped else []), *learns]
    parameters = list(parameters_of(cls))
    lines = ["", f"## {name}", "", _prose(text.summary), "", f"*{'; '.join(marks)}*"]
    if parameters:
        lines += ["", "| parameter | type | default | meaning |", "|---|---|---|---|"]
        lines += [
            f"| `{p}` | {_cell(_prose(kind))} | {default if default == NEEDED else f'`{_cell(default)}`'} | "
            f"{_cell(_prose(meaning))} |"
            for p, kind, default, meaning in parameters
        ]
    lines += ["", _prose(text.notes)] if text.notes else []
    lines += ["", f"In a job: `- {{columns: [..], ops: [{{op: {name}{format_required_parameters(cls)}}}]}}`"]
    return "\n".join([*lines, "", "```python", text.examples, "```"])


TYPES = {
    "string": "text",
    "integer": "number",
    "number": "number",
    "boolean": "true, false",
    "array": "list",
    "object": "map",
    "null": "",
}
LAST = ("contract", "checks", "run")  # of the sections


def keys_table() -> str:
    """Every key of a job with its default, what it takes, and its description in the models."""
    schema = job_schema()
    sections = sorted(schema["properties"].items(), key=lambda section: section[0] in LAST)
    rows = _keys({"properties": dict(sections)}, "", schema["$defs"])
    return "\n".join(["| key | default | takes | meaning |", "|---|---|---|---|", *rows])


def _keys(section: Schema, prefix: str, models: dict[str, Schema]) -> Iterator[str]:
    """The rows of a section; where several keys take one model, its keys come once: `checks.*.level`."""
    inner = {name: _model(field) for name, field in section["properties"].items()}
    counts = Counter(inner.values())
    for name, field in section["properties"].items():
        if text := field.get("description"):
            default = NEEDED if name in section.get("required", []) else field.get("default")
            shown = "" if default is None or isinstance(default, dict) else json.dumps(default).strip('"')
            yield f"| `{prefix}{name}` | {shown} | {' or '.join(_takes(field))} | {_cell(_prose(text))} |"
        if counts[inner[name]] == 1 and inner[name] not in ("", "Operator"):
            yield from _keys(models[inner[name]], f"{prefix}{name}{'[]' if 'items' in field else ''}.", models)
    for model in [model for model, count in counts.items() if model and count > 1]:
        yield from _keys(models[model], f"{prefix}*.", models)
    if isinstance(others := section.get("additionalProperties"), dict) and "enum" in others:
        yield f"| `{prefix}NAME` | | {', '.join(others['enum'])} | {_prose(others['description'])} |"


def _model(field: Schema) -> str:
    """The model whose keys a key takes, also as one of several types or as an item of a list; "" for a plain value."""
    either = [field, field.get("items", {}), *field.get("anyOf", [])]
    return next((one["$ref"].rpartition("/")[2] for one in either if "$ref" in one), "")


def _takes(field: Schema) -> list[str]:
    """The types or choices of a key, each once."""
    if "enum" in field:
        return [", ".join(str(value) for value in field["enum"] if value is not None)]
    kinds = field.get("type", "object" if "$ref" in field else [])
    plain = [TYPES[kind] for kind in ([kinds] if isinstance(kinds, str) else kinds)]
    return [*filter(None, dict.fromkeys([*plain, *(kind for one in field.get("anyOf", []) for kind in _takes(one))]))]


def _prose(text: str) -> str:
    """Signs that Markdown would take for its own: underscores of names, the angles of placeholders, stars of
    products."""
    parts = text.split("`")
    for number in range(0, len(parts), 2):
        for sign in ("_", "*", "<"):
            parts[number] = parts[number].replace(sign, "\\" + sign)
    return "`".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


STUB_HEAD = f"# The names of rowmill.ops for type checkers and editors, made by: {COMMAND}\n"
BASE = ("Context", "Learned", "Operator", "Unit", "make_operator")


def stub() -> str:
    """The stub of `rowmill.ops`: every name of `tasks.ops`, from the module that defines it."""
    names = [("tasks.ops.base", name) for name in BASE] + [(cls.__module__, name) for name, cls in operators().items()]
    return "\n".join([STUB_HEAD, *(f"from {module} import {name} as {name}" for module, name in sorted(names))])


NAMES_HEAD = """These names of NVTabular do not exist here; errors say what to write. `Operator` stands for any
operator, `Node` for `columns >> operator`."""
BEGIN, END = f"<!-- made by: {COMMAND} -->\n", "<!-- end -->\n"


def nvtabular_table() -> str:
    """What differs from NVTabular, a row for each thing."""
    rows = [f"| {_cell(one.there)} | {_cell(one.here)} | {_cell(one.why)} |" for one in DIFFERENCES]
    return "\n".join(["| NVTabular | rowmill | what differs, and why |", "|---|---|---|", *rows])


def nvtabular_names() -> str:
    """Every name of NVTabular that errors know, with what to write in place of it."""
    rows = [f"| `{_cell(name)}` | {_cell(_prose(here))} |" for name, here in sorted(WRITE.items())]
    return "\n".join([NAMES_HEAD, "", "| NVTabular | write |", "|---|---|", *rows])


def nvtabular_page() -> str:
    """The page for users of NVTabular, its two tables made anew; the text around them is written by hand."""
    before, *written = NVTABULAR_PAGE.read_text().split(BEGIN)
    tables = [nvtabular_table(), nvtabular_names()]
    parts = [BEGIN + table + "\n" + END + one.partition(END)[2] for table, one in zip(tables, written, strict=True)]
    return (before + "".join(parts)).removesuffix("\n")


PAGE = Path(tasks.__file__).resolve().parent / "ops" / "README.md"
EXPRESSIONS_PAGE = PAGE.parent / "EXPRESSIONS.md"
NVTABULAR_PAGE = PAGE.parent / "NVTABULAR.md"
KEYS_PAGE = Path(flows.__file__).resolve().parent / "KEYS.md"
KEYS_BEGIN = "| key | default | takes | meaning |"
STUB = Path(flows.__file__).resolve().parent / "public" / "rowmill" / "ops.pyi"
WRITTEN = {PAGE: reference_page, EXPRESSIONS_PAGE: expressions_page, NVTABULAR_PAGE: nvtabular_page, STUB: stub}


def with_keys(page: str) -> str:
    """The page of keys with its table anew."""
    before, rest = page.split(KEYS_BEGIN)
    after = rest.partition("\n\n")[2]
    return f"{before}{keys_table()}\n\n{after}"


if __name__ == "__main__":
    for path, text in WRITTEN.items():
        path.write_text(text() + "\n")
    KEYS_PAGE.write_text(with_keys(KEYS_PAGE.read_text()))
