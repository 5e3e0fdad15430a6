"""The reference of all operators as a Markdown page, made of their docstrings and parameters: tasks/ops/README.md."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import tasks
from flows.commands.inspect import NEEDED, operators, operators_markdown, parameters_of, refit_rule
from tasks.engines.expression import syntax
from tasks.engines.expression.functions import FUNCTIONS, GROUPS, Example, Function
from tasks.ops.base import Learned, Operator

COMMAND = "rowmill ops --page > tasks/ops/README.md"
HEAD = f"""<!-- made by: {COMMAND} -->
# Operators

Every operator is a class of declared parameters; `columns >> Operator(..)` in Python, `{{op: Operator, ..}}` in a
job. The examples run as tests. *Learns* means that `fit` reads data for it, and says what a refit does with what was
learned: *merged* (equal to a fit of all rows), *appended* (ids stay, new values come behind them), *frozen* (it stays
until everything is learned anew) or *read again* (side tables). *Group* means that a nested list of columns is treated
as one. `rowmill ops NAME` shows the whole rule of one operator.

A `JobError` says what to change in the job, a `DataError` what to change in the data. Every operator raises a
`DataError` for a column of a type that it does not take, and a `JobError` for a parameter that does not exist.

A class of a module of your own, named by import path in `op:`, is as good an operator as these;
[a package](OWN_OPERATOR.md) registers its operators by name. For users of NVTabular
there is [a table of names](NVTABULAR.md), for those who change rowmill
[how to add an operator](../README.md#how-to-add-an-operator).
"""


EXPRESSIONS_COMMAND = "rowmill ops --expressions > tasks/ops/EXPRESSIONS.md"
EXPRESSIONS_HEAD = f"""<!-- made by: {EXPRESSIONS_COMMAND} -->
# Expressions
"""
FUNCTIONS_RULE = """Arguments may be named: `parse_number(price, decimal=",")`. Signs, formats, patterns, zones, units
and places are literals. Null gives null where nothing else is said. The examples run as tests on both engines."""


INFINITE = {  # operators: what an infinity does
    "Normalize, PCA, PairwiseRegression, the targets of TargetEncoding": (
        "cannot be learned from: an error that names column and row"
    ),
    "NormalizeMinMax": "takes no part in what is learned, and stays infinite; null after a fit on one value or none",
    "DataStats": "is counted, and takes no part in the other figures",
    "FillMedian, QuantileBucketize": "is the least or the greatest value",
    "JoinGroupby, Groupby, Rolling": (
        "counts, and is a min or a max; sum and mean become infinite, null where both signs meet, std and var null"
    ),
    "DifferenceLag": "the difference is infinite, of two of one sign null",
    "Clip, Bucketize": "is limited, lies in the first or the last bucket",
    "LogOp": "stays; minus infinity gives null, as all values below -1",
    "Categorify, HashBucket, HashedCross, DropLowCardinality, keys of any operator": "a value like others",
    "all others": "passes through",
}


def reference_page() -> str:
    """The whole page: a line of links, a table, then a section for each operator, expressions and infinities."""
    named = [*operators(), "Expressions", "Infinities"]
    links = " · ".join(f"[{name}](#{name.lower()})" for name in named)
    sections = [section(name, cls) for name, cls in operators().items()]
    table = ["", "## All operators", "", operators_markdown()]
    return "\n".join([HEAD, links, *table, *sections, expressions(), infinities()])


def infinities() -> str:
    """What operators do with infinities."""
    rows = [f"| {names} | {rule} |" for names, rule in INFINITE.items()]
    text = "NaN is null everywhere. Plus and minus infinity are values:"
    return "\n".join(["", "## Infinities", "", text, "", "| operators | an infinity |", "|---|---|", *rows])


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


def _plain(values: Any) -> str:
    if isinstance(values, list):
        return f"[{', '.join(map(_plain, values))}]"
    return values.isoformat(" ") if isinstance(values, datetime) else repr(values)


def section(name: str, cls: type[Operator]) -> str:
    """Rule, accepted types, parameters, the line in a job, and the example of one operator."""
    text, examples = split_examples(inspect.cleandoc(cls.__doc__ or ""))
    takes = ", ".join(sorted(cls.takes)) + (", and lists of these" if cls.leaves else "")
    learns = [f"learns; a refit: {refit_rule(cls)}"] if issubclass(cls, Learned) else []
    marks = [f"takes {takes}", *(["group"] if cls.grouped else []), *learns]
    parameters = list(parameters_of(cls))
    needed = "".join(f", {parameter}: .." for parameter, _, default in parameters if default == NEEDED)
    lines = ["", f"## {name}", "", _prose(text), "", f"*{'; '.join(marks)}*"]
    if parameters:
        lines += ["", "| parameter | type | default |", "|---|---|---|"]
        lines += [f"| {p} | `{_cell(kind)}` | {default if default == NEEDED else f'`{_cell(default)}`'} |"
                  for p, kind, default in parameters]  # fmt: skip
    lines += ["", f"In a job: `- {{columns: [..], ops: [{{op: {name}{needed}}}]}}`", "", "```python", examples, "```"]
    return "\n".join(lines)


def split_examples(docstring: str) -> tuple[str, str]:
    """What a docstring says, and its doctest.

    >>> split_examples("Twice.\\n\\n>>> 2 * 2\\n4")
    ('Twice.', '>>> 2 * 2\\n4')
    """
    text, mark, examples = docstring.partition("\n>>> ")
    return text.strip(), (mark + examples).strip()


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


PAGE = Path(tasks.__file__).resolve().parent / "ops" / "README.md"
EXPRESSIONS_PAGE = PAGE.parent / "EXPRESSIONS.md"
