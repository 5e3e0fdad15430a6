"""What a person meets on Prefect's page: the form, what it says of nonsense, and the run that it started."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tasks.manifest import Manifest
from tests.browser.conftest import Served, final
from tests.flows.runs import key_of, rows_of
from tests.infra.elsewhere import until

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(600)]
STAGES = ("ingest", "statistics", "transform", "shuffle_write")
REPORT = [
    "Stages", "Throughput and memory", "Workflow", "Source columns", "Output columns", "Learned", "Embeddings", "Files",
    "Job",
]  # fmt: skip
NONSENSE = "- columns: [price]\n  ops:\n    - {op: FillMissing}\n    - {op: Normalise}\n"


class ByForm(NamedTuple):
    run: Any
    output: Path


@pytest.fixture(scope="module")
def by_form(served: Served, nightly: Any, tab: Any, api: Any, keep: Any) -> ByForm:
    """From the first page of the server to the finished run, by clicks and typed text only."""
    output = served.folder / "out by hand"
    tab.goto(served.url)
    tab.get_by_role("link", name="Deployments").first.click()
    tab.get_by_role("link", name="by-form").first.click()
    tab.get_by_role("button", name="Run", exact=True).click()
    tab.get_by_role("menuitem", name="Custom run").click()
    tab.get_by_label("recipe").click()
    tab.get_by_role("option", name="ecommerce").click()
    field(tab, "output", "Path").fill(str(output))
    field(tab, "output", "Seed").fill("7")
    field(tab, "output", "Files").fill("3")
    field(tab, "run", "Date").fill("2026-11-22")
    field(tab, "run", "Timezone").fill("Europe/Berlin")
    group(group(tab.locator("body"), "run"), "If Empty").locator("fieldset button").first.click()
    tab.get_by_role("option", name="skip").click()
    group(tab.locator("body"), "run").scroll_into_view_if_needed()
    keep(tab, "form-date")
    tab.get_by_text("Parameters", exact=True).scroll_into_view_if_needed()
    keep(tab, "form")
    submit(tab, "shop-by-hand")
    find_run(tab, api, "shop-by-hand", output)
    run_id = tab.url.partition("?")[0].rpartition("/")[2]
    tab.goto("about:blank")
    return ByForm(final(api, run_id), output)


def field(page: Any, section: str, name: str) -> Any:
    """The input of a field inside a section of the form."""
    return group(group(page.locator("body"), section), name).locator("input, textarea").first


def group(inside: Any, name: str) -> Any:
    """A field or section with everything in it; not every label is tied to an input."""
    label = re.compile(rf"^{name} \(Optional\)$")
    return inside.locator("div.group").filter(has=inside.page.locator("label", has_text=label)).last


def open_form(page: Any, served: Served, deployment: str = "by-form") -> None:
    page.goto(f"{served.url}/v2/deployments/deployment/{served.deployments[deployment].id}/run")
    page.get_by_label("recipe").wait_for()


def submit(page: Any, name: str = "") -> None:
    """Hand the form in, as a run of that name. The page puts a name of its own there when it is ready, so this is
    last."""
    if name:
        page.get_by_label("Run Name").fill(name)
    page.get_by_role("button", name="Submit").click()


def find_run(page: Any, api: Any, name: str, output: Path) -> None:
    """Once the form is taken, to the page of its run by the list of runs.

    A click while the page still looks at what was typed is lost: a person clicks again.
    """
    taken = False
    for _ in range(6):
        try:
            page.wait_for_url(lambda url: not url.partition("?")[0].endswith("/run"), timeout=20_000)
            taken = True
            break
        except Exception:
            submit(page, name)
    assert taken
    page.get_by_role("link", name="Runs", exact=True).first.click()
    try:
        page.get_by_role("link", name=name, exact=True).first.click(timeout=20_000)
    except Exception:  # the list has the newest runs only, and other tests' runs are newer by now; a late page renames
        found = {run.id: run for run in api.read_flow_runs(limit=200)}
        wanted = [i for i, run in found.items() if run.parameters.get("output", {}).get("path") == str(output)]
        assert wanted, [(run.name, run.parameters) for run in found.values()]
        page.goto(f"{page.url.partition('/runs')[0]}/runs/flow-run/{wanted[0]}")
    page.wait_for_url("**/runs/flow-run/*")  # a page that is slow still has the address of the list


def runs_of(api: Any, served: Served, deployment: str = "by-form") -> list[Any]:
    from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId

    chosen = DeploymentFilter(id=DeploymentFilterId(any_=[served.deployments[deployment].id]))
    return list(api.read_flow_runs(deployment_filter=chosen))


def texts(api: Any, run: Any) -> str:
    """The log of a run, as one text."""
    from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId

    found = api.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run.id])))
    return "\n".join(entry.message for entry in found)


def artifacts_of(api: Any, run_id: Any) -> list[Any]:
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId

    chosen = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run_id]))
    return list(api.read_artifacts(artifact_filter=chosen))


@pytest.mark.promise("A recipe or a job file is enough", "flows/OPERATIONS.md#start-it-from-a-form")
def test_a_person_runs_the_ecommerce_recipe_from_the_form(by_form: ByForm) -> None:
    train, valid = Manifest.load(by_form.output / "train"), Manifest.load(by_form.output / "valid")

    assert by_form.run.state_name == "Completed"
    assert by_form.run.parameters["recipe"] == "ecommerce"
    assert by_form.run.parameters["output"] == {"path": str(by_form.output), "seed": 7, "files": 3}
    assert by_form.run.parameters["run"] == {"date": "2026-11-22", "timezone": "Europe/Berlin", "if_empty": "skip"}
    assert (train.data["seed"], valid.data["seed"], train.data["dated"]["date"]) == (7, 7, "2026-11-22")
    assert [len(train.parts), train.rows["in"], valid.rows["in"]] == [3, 3000, 600]
    assert "TE_cat_2_brand_target" in rows_of(by_form.output / "train").column_names


@pytest.mark.promise("The parameters of a run are laid over those of its deployment, key by key")
@pytest.mark.promise("What a run gives is laid over `parameters`")
def test_a_run_that_names_one_key_of_a_section_keeps_the_others_of_its_deployment(
    served: Served, nightly: Any, api: Any
) -> None:
    final(api, nightly)
    manifest = Manifest.load(served.folder / "nightly")

    assert api.read_flow_run(nightly).parameters["output"] == {"seed": 1}
    assert (manifest.data["seed"], len(manifest.parts), manifest.rows["out"]) == (1, 2, 2000)


def test_the_page_of_the_run_shows_its_stages(by_form: ByForm, served: Served, page: Any, api: Any, keep: Any) -> None:
    page.goto(f"{served.url}/v2/runs/flow-run/{by_form.run.id}")
    page.get_by_text("6 Task runs").wait_for()
    page.get_by_text("Completed", exact=True).first.wait_for()
    page.get_by_text("Beginning flow run").first.wait_for()
    page.locator("canvas").first.wait_for()
    keep(page, "run", 1500)  # the graph is drawn, not laid out as text
    page.get_by_role("tab", name="Task Runs").click()
    for task in ("ingest", "statistics", "transform train", "transform valid", "shuffle_write train"):
        page.get_by_role("link", name=task, exact=True).wait_for()
    graph = api.request("GET", "/flow_runs/{id}/graph-v2", path_params={"id": by_form.run.id}).json()
    labels = [node["label"] for _, node in graph["nodes"]]

    assert all(node["parents"] for _, node in graph["nodes"][1:])  # each stage follows the one before it
    assert [label.split()[0] for label in labels[:4]] == list(STAGES)
    assert labels[4:] == ["transform valid", "shuffle_write valid"]


def test_each_stage_has_a_text_that_can_be_read(by_form: ByForm, served: Served, page: Any, api: Any) -> None:
    kinds = {(artifact.key, artifact.type) for artifact in artifacts_of(api, by_form.run.id)}
    page.goto(f"{served.url}/v2/runs/flow-run/{by_form.run.id}?tab=Artifacts")
    page.get_by_role("link", name=f"{key_of(by_form.output)}-statistics-summary").first.click()
    entry = page.locator("div").filter(has=page.get_by_role("link", name="shop-by-hand")).last.locator("a").first
    entry.click()
    page.get_by_role("heading", name="statistics: 3,000 rows").wait_for()

    for stage in ("ingest", "statistics", "transform-train", "transform-valid", "shuffle-write-train"):
        key = f"{key_of(by_form.output)}-{stage}"
        assert (f"{key}-summary", "markdown") in kinds
    # Progress is shown only of a stage that takes its time.
    assert {kind for key, kind in kinds if key.startswith(key_of(by_form.output))} <= {"markdown", "progress"}


@pytest.mark.promise("keys contain flow, output and stage and do not change between runs")
def test_a_key_holds_the_artifacts_of_the_runs_to_one_output(
    by_form: ByForm, nightly: Any, served: Served, page: Any, api: Any
) -> None:
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

    final(api, nightly)
    for run, output in ((by_form.run.id, by_form.output), (nightly, served.folder / "nightly")):
        key = f"{key_of(output)}-ingest-summary"
        found = api.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=[key])))
        page.goto(f"{served.url}/v2/artifacts/key/{key}")
        page.get_by_text(api.read_flow_run(run).name).first.wait_for()
        assert {artifact.flow_run_id for artifact in found} == {run}


@pytest.mark.promise("a Failed run within seconds, whose message names the place and, in YAML, the line")
def test_a_misspelt_operator_is_a_failed_run_that_names_the_line(
    served: Served, page: Any, api: Any, keep: Any
) -> None:
    open_form(page, served)
    group(page.locator("body"), "features").locator("textarea").fill(NONSENSE)
    field(page, "output", "Path").fill(str(served.folder / "never"))
    submit(page, "nonsense")
    find_run(page, api, "nonsense", served.folder / "never")
    run = final(api, page.url.partition("?")[0].rpartition("/")[2])
    page.get_by_role("tab", name="Details").click()
    page.get_by_text("did not generate any task").wait_for()
    page.get_by_text("unknown operator 'Normalise'").first.scroll_into_view_if_needed()
    keep(page, "nonsense")

    for text in (run.state.message, until(lambda: texts(api, run), "the log of the run")):
        assert "unknown operator 'Normalise'" in text
        assert "features[0].ops[1] (line 4 of features)" in text
        assert "did you mean 'Normalize'" in text
    assert "Dask cluster" not in texts(api, run)
    assert run.total_run_time.total_seconds() < 60
    assert not (served.folder / "never").exists()


@pytest.mark.promise("The form names the field of a wrong type, key or choice, and makes no run")
@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ({"retrys": 1}, ["field 'run'", "'retrys' is not one of", "'retries'"]),
        ({"retries": "many"}, ["field 'run.retries'", "'many' is not of type 'integer'"]),
    ],
)
def test_a_wrong_key_or_type_is_named_by_the_form_and_no_run_is_made(
    typed: dict[str, Any], said: list[str], served: Served, page: Any, api: Any
) -> None:
    before = len(runs_of(api, served))
    open_form(page, served)
    section = group(page.locator("body"), "run")
    section.get_by_role("button").first.click()
    page.get_by_role("menuitem", name=re.compile("JSON")).click()
    section.locator(".cm-content").click()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.insert_text(json.dumps(typed))
    submit(page)
    message = page.get_by_text("Error creating flow run")
    message.wait_for()

    for part in said:
        assert part in message.inner_text()
    assert len(runs_of(api, served)) == before


def test_a_number_out_of_range_is_refused_at_its_field(served: Served, page: Any, api: Any) -> None:
    before = len(runs_of(api, served))
    open_form(page, served)
    files = field(page, "output", "Files")
    files.fill("0")
    submit(page)

    assert "1" in files.evaluate("field => field.validationMessage")
    assert len(runs_of(api, served)) == before
    assert "/run" in page.url


def test_the_form_begins_with_what_the_deployment_says(served: Served, page: Any) -> None:
    open_form(page, served, "toy")

    assert page.get_by_label("recipe").inner_text() == "toy"
    assert field(page, "source", "Path").input_value() == "toy"
    assert field(page, "output", "Path").input_value() == "nightly"
    assert field(page, "output", "Seed").input_value() == ""
    assert page.get_by_text("None", exact=True).count() == 0


@pytest.mark.promise("the run and its data, for people: one file, no network")
@pytest.mark.parametrize("medium", ["screen", "print"])
def test_the_report_of_the_run_is_one_page_that_needs_no_network(medium: str, by_form: ByForm, page: Any) -> None:
    asked: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    address = (by_form.output / "train" / "_report.html").as_uri()
    page.emulate_media(media=medium)
    page.goto(address)
    sections = [heading.inner_text() for heading in page.get_by_role("heading", level=2).all() if heading.is_visible()]

    assert [url for url in asked if not url.startswith("data:")] == [address]
    assert complaints == []
    assert sections == REPORT
    assert page.locator("svg").count() >= 3
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.get_by_role("navigation").is_visible() is (medium == "screen")


@pytest.mark.parametrize("width", [1400, 800])
def test_a_report_is_read_without_scrolling_sideways(width: int, by_form: ByForm, page: Any) -> None:
    overflowing = "[...document.querySelectorAll('.scroll, .picture')].filter(e => e.scrollWidth > e.clientWidth)"
    page.set_viewport_size({"width": width, "height": 900})
    page.goto((by_form.output / "train" / "_report.html").as_uri())
    scrolled = page.evaluate(f"{overflowing}.length")
    page.get_by_label("full size").check()
    picture = page.evaluate("document.querySelector('.picture svg').clientWidth")

    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert picture == 1426  # of the workflow of ecommerce, in its full size
    if width == 1400:
        assert scrolled == 0
