"""A real Chromium, and a real `rowmill serve` that offers deployments on the session's server: one of each."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from flows.job.access import CLUSTERS, SWITCHES
from tests.browser.deployments import deployments, make_days
from tests.conftest import python_path
from tests.hosts import FORKING
from tests.infra.elsewhere import until
from tests.running import section_of

SCREENSHOTS = Path(__file__).parent / "screenshots"
NAMES = ("chromium", "chromium-browser", "google-chrome")
VIEWPORT = {"width": 1280, "height": 900}
# Nothing is fetched from outside, neither by the browser itself nor by the pages.
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]  # fmt: skip


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """A headless Chromium with a profile of its own. For this folder only: Playwright keeps an event loop meanwhile."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("no Chromium on this host: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=path, args=ARGUMENTS, headless=True)
        # One profile, as a person has it: what the pages load is loaded once.
        context = running.new_context(viewport=VIEWPORT, locale="en-GB", timezone_id="UTC")
        context.set_default_timeout(60_000)  # the patience that two busy cores need
        yield context
        running.close()


@pytest.fixture(scope="package")
def tab(browser: Any) -> Iterator[Any]:
    """The one page of all tests: what a new one loads and compiles costs more than most tests."""
    with browser.new_page() as opened:
        yield opened


@pytest.fixture
def page(tab: Any) -> Iterator[Any]:
    """An empty page."""
    yield tab
    tab.goto("about:blank")
    tab.set_viewport_size(VIEWPORT)
    tab.emulate_media(media="null")


@pytest.fixture(scope="session")
def keep() -> Callable[..., None]:
    """Saves what a page shows as a small PNG for the README, where ROWMILL_SCREENSHOTS is set; after so many
    milliseconds where it is still being drawn."""

    def save(page: Any, name: str, after: float = 0) -> None:
        if os.environ.get("ROWMILL_SCREENSHOTS"):
            from PIL import Image

            page.wait_for_timeout(after)
            path = SCREENSHOTS / f"{name}.png"
            path.parent.mkdir(exist_ok=True)
            page.screenshot(path=path)
            with Image.open(path) as shot:
                shot.convert("RGB").quantize(64).save(path, optimize=True)
            assert path.stat().st_size < 150_000

    return save


class Served(NamedTuple):
    """Where `rowmill serve` works, its deployments by name, and the page of the server."""

    folder: Path
    deployments: dict[str, Any]
    url: str


@pytest.fixture(scope="package")
def served(prefect_server: Any, cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One `rowmill serve` of all deployments of these tests. Their runs are forks that use the session's cluster."""
    from prefect import get_client

    folder = tmp_path_factory.mktemp("served")
    make_days(folder)
    specs = deployments(folder, section_of(cluster))
    (folder / "deployments.yaml").write_text(yaml.safe_dump({"deployments": specs}))
    environment = os.environ | {
        "PYTHONPATH": python_path(), "PYTHONWARNINGS": "ignore", "PREFECT_API_URL": prefect_server.api_url,
        "PREFECT_RUNNER_POLL_FREQUENCY": "1", CLUSTERS: cluster.scheduler_address, SWITCHES: "tls",
    }  # fmt: skip
    command = [sys.executable, "-P", "-c", FORKING, "serve", "--file", "deployments.yaml", "--limit", "2"]
    with (folder / "serve.log").open("wb") as log:
        serving = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        with get_client(sync_client=True) as client:
            names = {spec["name"]: f"{spec['entrypoint'].rpartition('.')[2]}/{spec['name']}" for spec in specs}
            until(lambda: serving.poll() is not None or are_served(client, names.values()), "all are served")
            assert serving.poll() is None, (folder / "serve.log").read_text()
            found = {name: client.read_deployment_by_name(full_name) for name, full_name in names.items()}
        yield Served(folder, found, prefect_server.ui_url)
    finally:
        serving.send_signal(signal.SIGTERM)
        try:
            serving.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(serving.pid, signal.SIGKILL)
            serving.wait(10)


def are_served(client: Any, names: Iterable[str]) -> bool:
    """Whether the server has deployments of these names that somebody serves."""
    from prefect.exceptions import ObjectNotFound

    try:
        return all(client.read_deployment_by_name(name).status == "READY" for name in names)
    except ObjectNotFound:
        return False


@pytest.fixture(scope="package")
def nightly(served: Served) -> Any:
    """The id of a run of the deployment toy that was given the seed alone."""
    from prefect import get_client

    with get_client(sync_client=True) as client:
        run = client.create_flow_run_from_deployment(served.deployments["toy"].id, parameters={"output": {"seed": 1}})
    return run.id


def final(api: Any, run_id: Any) -> Any:
    """The run, when it has ended."""
    return until(lambda: (run := api.read_flow_run(run_id)).state.is_final() and run, f"run {run_id} has ended")
