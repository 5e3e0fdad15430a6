"""A real Chromium, and a real `rowmill serve` that offers deployments on the session's server."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import python_path

SCREENSHOTS = Path(__file__).parent / "screenshots"
NAMES = ("chromium", "chromium-browser", "google-chrome")
# Nothing is fetched from outside, neither by the browser itself nor by the pages.
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium with a profile of its own. For a module, since Playwright keeps an event loop meanwhile."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("no Chromium on this host: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=path, args=ARGUMENTS, headless=True)
        yield running
        running.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    with new_page(browser) as opened:
        yield opened


def new_page(browser: Any) -> Any:
    """An empty page of a context of its own, with the patience that two busy cores need."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, locale="en-GB", timezone_id="UTC")
    context.set_default_timeout(60_000)
    return context.new_page()


@pytest.fixture(scope="session")
def keep() -> Callable[[Any, str], None]:
    """Saves what a page shows as a small PNG for the README, where ROWMILL_SCREENSHOTS is set."""

    def save(page: Any, name: str) -> None:
        if os.environ.get("ROWMILL_SCREENSHOTS"):
            from PIL import Image

            path = SCREENSHOTS / f"{name}.png"
            path.parent.mkdir(exist_ok=True)
            page.screenshot(path=path)
            with Image.open(path) as shot:
                shot.convert("RGB").quantize(64).save(path, optimize=True)
            assert path.stat().st_size < 150_000

    return save


@pytest.fixture(scope="module")
def serve(prefect_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[list[Any]], Path]]:
    """Starts `rowmill serve` with deployments, in a folder that is returned, and stops it in the end."""
    started: list[subprocess.Popen[bytes]] = []

    def start(deployments: list[Any]) -> Path:
        folder = tmp_path_factory.mktemp("served")
        (folder / "deployments.yaml").write_text(yaml.safe_dump({"deployments": deployments}))
        command = [sys.executable, "-P", "-c", "from rowmill.cli import main; main()"]
        environment = os.environ | {
            "PYTHONPATH": python_path(),
            "PREFECT_API_URL": prefect_server.api_url,
            "PREFECT_RUNNER_POLL_FREQUENCY": "1",
            "PYTHONWARNINGS": "ignore",
        }
        with (folder / "serve.log").open("wb") as log:
            serving = subprocess.Popen(
                [*command, "serve", "--file", "deployments.yaml", "--limit", "2"],
                cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        started.append(serving)
        names = [f"{spec['entrypoint'].rpartition('.')[2]}/{spec['name']}" for spec in deployments]
        wait_for(lambda: serving.poll() is not None or all(map(is_offered, names)), 90)
        assert serving.poll() is None, (folder / "serve.log").read_text()
        return folder

    yield start
    for serving in started:
        serving.send_signal(signal.SIGTERM)
        try:
            serving.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(serving.pid, signal.SIGKILL)
            serving.wait(10)


def is_offered(name: str) -> bool:
    """Whether the server has a deployment that somebody serves."""
    from prefect import get_client
    from prefect.exceptions import ObjectNotFound

    with get_client(sync_client=True) as client:
        try:
            return client.read_deployment_by_name(name).status == "READY"
        except ObjectNotFound:
            return False


def wait_for(done: Callable[[], Any], seconds: float) -> Any:
    """What `done` says once that is something; TimeoutError after the given seconds."""
    deadline = time.monotonic() + seconds
    while not (found := done()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds} s")
        time.sleep(0.2)
    return found
