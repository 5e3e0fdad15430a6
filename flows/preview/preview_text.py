"""A preview for people: the same tables on a terminal and as the Markdown of an artifact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from rich.console import Console
from rich.text import Text

from flows.preview.preview_content import Preview
from flows.preview.preview_tables import print_rows, text_table
from flows.preview.readings import Reading
from tasks.core.dtypes import dtype_name
from tasks.core.markdown import escape_markdown, markdown_table
from tasks.core.schema import Schema
from tasks.core.settings import SplitRule
from tasks.core.stage_results import resources_text
from tasks.core.units import amount
from tasks.engines.convert.python_values import to_python_list
from tasks.job.run_date import Dated
from tasks.stages.cache_policy import is_costly
from tasks.stages.trial import Sampled

MOST_COLUMNS = 40  # of a frame that are shown
MOST_CHARACTERS = 40  # of a value
MOST_BYTES = 90_000  # of the Markdown of an artifact
REFUSED = "Would be refused"


@dataclass(frozen=True)
class TextSection:
    """A heading, a sentence, and a table as rows of texts."""

    title: str
    text: str = ""
    rows: Sequence[dict[str, str]] = ()
    is_transposed: bool = False  # each row of texts is a column of the data


def sections(preview: Preview, rows: int = 5) -> list[TextSection]:
    """List the sections of a preview, in reading order."""
    sample = preview.sample
    fitted = "the workflow as it was fitted"
    if sample.fitted_on is not None:
        fitted = f"a workflow fitted on these {sample.fitted_on:,} rows alone: ids and values will differ"
    before = f"of a sample of {sample.before.num_rows:,}"
    after = f"{sample.after.num_rows:,} came out of {fitted}"
    ids = "ids are those of the sample" if sample.fitted_on else ""
    return [
        *_list_remarks(preview),
        TextSection(
            "Source", f"{preview.rows:,} rows, about {amount(preview.nbytes)} decoded", _tabulate_sources(preview)
        ),
        *_list_splits(preview.job_source.split),
        TextSection("Columns in", "", _tabulate_columns(preview.source, sample.before.column_names)),
        TextSection("Columns out", ids, _tabulate_columns(sample.schema)),
        TextSection("Rows before", before, _transpose_rows(sample.before, rows), is_transposed=True),
        TextSection("Rows after", after, _transpose_rows(sample.after, rows), is_transposed=True),
        *_list_failed_casts(sample),
        TextSection("Plan", preview.workers.text + _describe_cache(preview), _tabulate_steps(preview)),
        TextSection("Needs", _explain_exchange(preview), _tabulate_needs(preview)),
        *_list_traffic(preview),
        TextSection("Time", _describe_time(preview)),
    ]


def _list_remarks(preview: Preview) -> list[TextSection]:
    """List the sections that only some previews have: what is unusual about the job comes first."""
    remarks: list[TextSection] = []
    if preview.refused:
        remarks.append(TextSection(REFUSED, "", [{"what": str(error)} for error in preview.refused]))
    if preview.made_up:
        remarks.append(TextSection("Made-up data", preview.made_up))
    if preview.dated:
        remarks.append(_make_date_section(preview.dated))
    if preview.base:
        remarks.append(TextSection("Base", preview.base, preview.modes))
    if preview.differs:
        remarks.append(TextSection("Different from the fit", "; ".join(preview.differs)))
    if preview.united:
        remarks.append(TextSection("How columns are read", "; ".join(preview.united)))
    if preview.contract:
        remarks.append(TextSection("The contract", "; ".join(preview.contract)))
    if preview.bad_lines:
        remarks.append(TextSection("Bad lines", preview.bad_lines))
    if preview.left_out:
        text = f"{', '.join(preview.left_out)}: the source lacks what they need"
        remarks.append(TextSection("Left out", text))
    return remarks


def _make_date_section(dated: Dated) -> TextSection:
    rows = [{"key": place, "pattern": pattern, "is": text} for place, (pattern, text) in dated.became.items()]
    return TextSection("Date", dated.run_date.sentence, rows)


def _list_splits(rule: SplitRule | None) -> list[TextSection]:
    return [TextSection("Splits", _describe_learning(rule), _tabulate_splits(rule))] if rule else []


def _list_failed_casts(sample: Sampled) -> list[TextSection]:
    rows = [{name: str(value) for name, value in record.items()} for record in sample.failed_casts]
    return [TextSection("Casts that fail", "in the sample", rows)] if rows else []


def _describe_cache(preview: Preview) -> str:
    """Note that a pass takes decoded columns of the pass before it from memory; "" if it does not."""
    first_plan = next(iter(preview.plans.values()))  # all splits have one format
    is_cached = preview.workers.engine == "cudf" or is_costly(first_plan)
    if len(preview.readings) < 2 or not is_cached or (preview.needs and preview.needs.exchange == "disk"):
        return ""
    return "; what a pass decodes stays in memory for the next, if there is room"


def _tabulate_sources(preview: Preview) -> list[dict[str, str]]:
    return [
        {
            "split": split or "all",
            "format": plan.format,
            "files": f"{len(plan.files):,}",
            "rows": f"{plan.rows:,}",
            "decoded": amount(plan.nbytes),
            "partitions": f"{len(plan.partitions):,}",
            "blocks": f"{len(plan.blocks):,}",
            "skipped": f"{len(plan.skipped):,}",
        }
        for split, plan in preview.plans.items()
    ]


def _tabulate_splits(rule: SplitRule) -> list[dict[str, str]]:
    """Say in words which rows each split has.

    >>> _tabulate_splits(SplitRule(by="last", column="t", together=["user"], valid=1, test=2))[1:] == [
    ...     {"split": "valid", "rows": "1 of each user by t, before those of test"},
    ...     {"split": "test", "rows": "the last 2 of each user by t"},
    ... ]
    True
    """
    rows = {name: _describe_split_rows(rule, name) for name in rule.splits[1:]}
    if rule.by == "time" and rule.together:
        rows = {name: f"{text}; {', '.join(rule.together)} as a whole, by the last row" for name, text in rows.items()}
    return [{"split": name, "rows": rows.get(name, "all others")} for name in rule.splits]


def _describe_split_rows(rule: SplitRule, name: str) -> str:
    value = getattr(rule, name)
    keys = ", ".join(rule.together)
    column = rule.column
    prefix = "the last "
    suffix = ""
    if name == "valid" and rule.test is not None:  # the last rows are those of test
        prefix = ""
        suffix = ", before those of test"
    if rule.by == "last":
        return f"{prefix}{value} of each {keys} by {column}{suffix}"
    if rule.by == "time" and rule.by_shares:
        return f"{prefix}{value} of the rows by {column}{suffix}"
    if rule.by == "time":
        return f"{column} from {value} on"
    if rule.by == "column":
        return f"{column} is {' or '.join(map(str, value if isinstance(value, list) else [value]))}"
    return f"{value} of {'all ' + keys if keys else 'the rows'}"


def _describe_learning(rule: SplitRule) -> str:
    back = "histories and groups of valid and test see the rows of earlier splits"
    return f"train alone is learned from; {back}" if rule.looks_back else "train alone is learned from"


def _tabulate_columns(schema: Schema, read: Sequence[str] | None = None) -> list[dict[str, str]]:
    rows = []
    visible = [column for column in schema.columns if not is_hidden(column.name)]
    for column in visible[:MOST_COLUMNS]:
        row = {"column": column.name, "type": dtype_name(column.dtype)}
        if read is None:
            embedding = column.properties.get("embedding") or {}
            ids = column.properties.get("cardinality")
            row |= {
                "tags": ", ".join(sorted(column.tags)),
                "ids": f"{ids:,}" if ids else "",
                "embedding": f"{embedding['rows']:,} x {embedding['dimension']}" if embedding else "",
            }
        else:
            row["read"] = "yes" if column.name in read else ""
        rows.append(row)
    return rows + _count_rest(len(visible), MOST_COLUMNS, rows)


def is_hidden(name: str) -> bool:
    """Tell whether a column is rowmill's own, such as the row numbers: it is read and not written."""
    return name.startswith("__")


def _count_rest(count: int, shown: int, rows: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    return [dict.fromkeys(rows[0], "") | {"column": f"and {count - shown:,} more"}] if count > shown else []


def _transpose_rows(table: pa.Table, rows: int) -> list[dict[str, str]]:
    """Show the first rows side by side, a column of the data in each line: a screen is too narrow for most tables."""
    names = [name for name in table.column_names if not is_hidden(name)]
    head = table.select(names[:MOST_COLUMNS]).slice(0, rows)
    shown = [
        {
            "column": name,
            **{f"row {i}": _format_preview_value(value) for i, value in enumerate(to_python_list(values), 1)},
        }
        for name, values in zip(head.column_names, head.columns, strict=True)
    ]
    return shown + _count_rest(len(names), MOST_COLUMNS, shown)


def _format_preview_value(value: object) -> str:
    if value is None:
        return ""
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    if isinstance(value, list):
        text = "[" + ", ".join(_format_preview_value(v) for v in value[:8]) + (", .." if len(value) > 8 else "") + "]"
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 2] + ".."


def _tabulate_steps(preview: Preview) -> list[dict[str, str]]:
    steps = [{"step": "ingest", "reads": "footers, or text once to count its rows", "bytes": ""}]
    steps += [{"step": r.what, "reads": _summarize_columns(r), "bytes": amount(r.nbytes)} for r in preview.readings]
    for split, files in preview.files.items():
        number = files.number
        each = f"about {files.rows // number:,} rows each, if none are dropped"
        if files.left < number:
            each = f"of which about {number - files.left:,} will be empty: there are about {files.left:,} rows"
        text = "; ".join(filter(None, [f"{number:,} files, {each}", files.chosen]))
        steps.append({"step": f"shuffle_write {split}".strip(), "reads": text, "bytes": ""})
    return steps


def _summarize_columns(reading: Reading) -> str:
    few = ", ".join(reading.columns[:8])
    return f"{len(reading.columns)} columns: {few}{', ..' if len(reading.columns) > 8 else ''}"


def _explain_exchange(preview: Preview) -> str:
    if not preview.needs:
        return "what is learned, which is known when it is learned"
    return f"exchange in {preview.needs.exchange}: {preview.needs.because}; what is learned comes on top"


def _tabulate_needs(preview: Preview) -> list[dict[str, str]]:
    needs = preview.needs
    if not needs:
        return []
    device_memory = preview.workers.device_memory
    available = amount(device_memory) if device_memory else "not known before the run"
    rows = [{"what": "GPU memory", "about": amount(needs.device), "there is": available}] if needs.device else []
    rows.append({"what": "host memory", "about": amount(needs.host), "there is": amount(needs.memory)})
    rows.append({"what": "scratch", "about": amount(needs.scratch), "there is": ""})
    rows.append({"what": "output", "about": amount(needs.output), "there is": ""})
    rows += [{"what": f"{d.what} in {d.path}", "about": amount(d.needed), "there is": d.room} for d in needs.disks]
    return rows


def _list_traffic(preview: Preview) -> list[TextSection]:
    """Say what a run fetches from storages, at most: what an earlier pass has decoded may still be in memory."""
    traffic = preview.traffic
    if traffic is None:
        return []
    total = traffic.total
    text = f"at most {total.requests:,} requests and {amount(total.nbytes)} of {', '.join(traffic.storages)}"
    if traffic.bandwidth and traffic.seconds is not None:
        text += f": {traffic.seconds:,.1f} s at {amount(traffic.bandwidth)}/s, as measured now"
    if traffic.cost is not None:
        text += f"; cost {traffic.cost:,.4g}"
    rows = [
        {"for": what, "requests": f"{of.requests:,}", "bytes": amount(of.nbytes)} for what, of in traffic.reads.items()
    ]
    return [TextSection("From storages", text, rows)]


def _describe_time(preview: Preview) -> str:
    if not preview.guess:
        return "not known: there is no record yet of a run on this host and engine"
    each = ", ".join(f"{name} {seconds:,.1f}" for name, seconds in preview.guess.seconds.items())
    taken = f"; {resources_text(preview.guess.resources)}" if preview.guess.resources else ""
    return f"about {preview.guess.total:,.1f} s ({each}), by {preview.guess.basis}{taken}"


def summary_line(preview: Preview) -> str:
    """Sum a preview up in one sentence."""
    outlook = f"would be refused: {preview.refused[0].what}" if preview.refused else _describe_time(preview)
    return f"{preview.rows:,} rows to {preview.target}; {outlook}"


def show(preview: Preview, rows: int, console: Console) -> None:
    """Print a preview."""
    title = f"preview of {preview.target}: nothing is written, no cluster is started"
    console.print(title, markup=False, soft_wrap=True)
    for section in sections(preview, rows):
        heading = Text(f"\n{section.title}", style="bold red" if section.title == REFUSED else "bold")
        heading.append(f"  {section.text}" if section.text else "", style="not bold")
        console.print(heading, soft_wrap=True)
        if section.title == REFUSED:
            for row in section.rows:
                console.print(row["what"], markup=False, soft_wrap=True)
        elif section.is_transposed and section.rows and len(section.rows[0]) > 1:  # the sample has rows
            numbers = [name for name in section.rows[0] if name != "column"]
            texts = [[row.get(number, "") for row in section.rows] for number in numbers]
            print_rows([row["column"] for row in section.rows], texts, console)
        elif section.rows:
            table = text_table("", *section.rows[0])
            for row in section.rows:
                table.add_row(*row.values())
            console.print(table)


def markdown(preview: Preview, rows: int = 5) -> str:
    """Write a preview as the Markdown of an artifact."""
    lines = [f"## Preview of {escape_markdown(str(preview.target))}", "Nothing was written, no cluster was started."]
    for section in sections(preview, rows):
        lines += [f"### {section.title}", escape_markdown(section.text)]
        if section.title == REFUSED:
            lines += ["```text\n" + "\n\n".join(row["what"].replace("```", "` ` `") for row in section.rows) + "\n```"]
        elif section.rows:
            lines.append(markdown_table(section.rows))
    text = "\n\n".join(line for line in lines if line)
    return text if len(text.encode()) <= MOST_BYTES else text.encode()[:MOST_BYTES].decode(errors="ignore") + "\n\n.."
