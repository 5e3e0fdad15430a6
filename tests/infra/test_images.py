"""Image, compose file, Kubernetes files and unit: read by their own parsers, checked against schemas."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra import gpus
from tests.infra.elsewhere import environment

INFRA = Path(__file__).resolve().parents[2] / "infra"
EXAMPLE = {"POSTGRES_PASSWORD": "p", "PREFECT_AUTH": "admin:q", "ROWMILL_DATA": "/lake"}


@pytest.mark.promise("each file with its use in its head", "infra/README.md#servers")
def test_the_image_has_both_targets_pinned_bases_and_no_root() -> None:
    parse = pytest.importorskip("dockerfile_parse", reason="needs dockerfile-parse: pip install '.[test]'")
    parsed = parse.DockerfileParser(path=str(INFRA / "Dockerfile"), cache_content=True)
    stages: dict[str, list[tuple[str, str]]] = {}
    for line in parsed.structure:
        if line["instruction"] == "FROM":
            base, _, name = line["value"].partition(" AS ")
            stages[name] = [("FROM", base)]
        elif line["instruction"] != "COMMENT":
            stages[name].append((line["instruction"], line["value"]))
    assert parsed.parent_images[0] == stages["base"][0][1] == "python:3.12.11-slim-bookworm"
    assert {stage[0][1] for name, stage in stages.items() if name != "base"} == {"base"}
    for target, extra in (
        ("cpu", "ssh,slurm,kubernetes,lineage,metrics"),
        ("cuda", "cuda13,ssh,slurm,kubernetes,lineage,metrics"),
    ):
        instructions = dict(stages[target])
        assert instructions["USER"] == "1000:1000"
        assert "HEALTHCHECK" in instructions
        assert instructions["COPY"] == f"--from={target}-packages /opt/rowmill /opt/rowmill"
        runs = [value for instruction, value in stages[f"{target}-packages"] if instruction == "RUN"]
        assert f"pip install '.[{extra}]'" in runs[0]
        assert runs[-1] == "pip install --no-deps ."
    for name, stage in stages.items():  # what changes with every commit comes after the dependencies
        copies = [i for i, (instruction, value) in enumerate(stage) if instruction == "COPY" and "flows" in value]
        assert all(i > 2 for i in copies), name


def test_the_image_takes_what_the_package_has() -> None:
    ignored = (INFRA / "Dockerfile.dockerignore").read_text().split()
    copied = re.findall(r"^COPY ([^-].*) \S+$", (INFRA / "Dockerfile").read_text(), re.MULTILINE)
    sources = {source for line in copied for source in line.split()}
    assert sources == {word[1:] for word in ignored if word.startswith("!")}
    assert all((INFRA.parent / source).exists() for source in sources)


@pytest.mark.system
def test_its_health_checks_are_commands_that_work() -> None:
    text = (INFRA / "Dockerfile").read_text()
    checks = [json.loads(found) for found in re.findall(r"^    CMD (\[.*\])$", text, re.MULTILINE)]
    assert [check[:3] for check in checks] == [["python", "-P", "-c"]] * 2
    on_gpus, on_cores = (
        subprocess.run([sys.executable, *check[1:]], env=environment(), timeout=240).returncode for check in checks
    )
    assert on_cores == 0
    assert on_gpus == (0 if gpus.visible() and not gpus.packages_missing() else 1)


def compose() -> dict[str, Any]:
    """The file with its variables filled in, as the command does it."""
    text = (INFRA / "compose.yaml").read_text()

    def value(found: re.Match[str]) -> str:
        name, default = found["name"], found["default"]
        return EXAMPLE.get(name, default or "")

    filled = re.sub(r"\$\{(?P<name>\w+)(?::-(?P<default>[^}]*)|:\?[^}]*)?\}", value, text)
    assert "${" not in filled
    loaded: dict[str, Any] = yaml.safe_load(filled)
    return loaded


@pytest.mark.promise("no port is open beyond this host")
def test_compose_opens_one_port_on_the_loopback_and_waits_for_health() -> None:
    services = compose()["services"]
    assert {name: service.get("ports") for name, service in services.items()} == {
        "postgres": None, "server": ["127.0.0.1:4200:4200"], "worker": None,
    }  # fmt: skip
    assert all("healthcheck" in service for service in services.values())
    assert services["server"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert services["worker"]["depends_on"] == {"server": {"condition": "service_healthy"}}
    assert services["server"]["environment"]["PREFECT_SERVER_API_AUTH_STRING"] == "admin:q"
    assert services["worker"]["environment"]["PREFECT_API_AUTH_STRING"] == "admin:q"
    assert services["worker"]["volumes"] == ["/lake:/data"]
    (gpu,) = services["worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert gpu == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    assert services["worker"]["shm_size"] == "8gb"
    assert not any(service["image"].endswith("latest") or ":" not in service["image"] for service in services.values())


@pytest.mark.promise("a Prefect server that asks for a password")
def test_compose_has_no_secret_and_its_example_names_every_variable() -> None:
    text = (INFRA / "compose.yaml").read_text()
    named = set(re.findall(r"\$\{(\w+)", text))
    lines = (INFRA / "compose.env.example").read_text().splitlines()
    example = dict(line.split("=", 1) for line in lines if "=" in line)
    assert set(example) == named
    assert (example["POSTGRES_PASSWORD"], example["PREFECT_AUTH"]) == ("", "")
    assert "infra/compose.env" in (INFRA.parent / ".gitignore").read_text().split()


@pytest.mark.system
def test_compose_by_its_own_program(tmp_path: Path) -> None:
    if not shutil.which("docker") or subprocess.run(["docker", "compose", "version"], capture_output=True).returncode:
        pytest.skip("needs docker with its plugin compose")
    (tmp_path / "env").write_text("".join(f"{name}={value}\n" for name, value in EXAMPLE.items()))
    files = ["-f", str(INFRA / "compose.yaml"), "--env-file", str(tmp_path / "env")]
    done = subprocess.run(["docker", "compose", *files, "config", "-q"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def documents() -> list[dict[str, Any]]:
    return [found for name in ("server.yaml", "worker.yaml")
            for found in yaml.safe_load_all((INFRA / "manifests" / name).read_text())]  # fmt: skip


def template(**given: Any) -> dict[str, Any]:
    """The job that Prefect's worker makes of the template: defaults and given values in their places."""
    loaded = json.loads((INFRA / "manifests" / "job-template.json").read_text())
    variables = {name: spec["default"] for name, spec in loaded["variables"]["properties"].items() if "default" in spec}
    variables |= {"name": "run", "labels": {"a": "b"}, "env": [{"name": "A", "value": "b"}], "command": ["prefect"]}
    variables |= given

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: filled(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [filled(inner) for inner in value]
        found = re.fullmatch(r"\{\{ (\w+) \}\}", value) if isinstance(value, str) else None
        if found:
            return variables[found[1]]
        return re.sub(r"\{\{ (\w+) \}\}", lambda m: str(variables[m[1]]), value) if isinstance(value, str) else value

    job: dict[str, Any] = filled(loaded["job_configuration"]["job_manifest"])
    return job


def test_the_kubernetes_files_fit_its_schemas() -> None:
    checker = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate: pip install '.[test]'")
    for found in [*documents(), template()]:
        checker.validate(found, "1.34", strict=True)
    with pytest.raises(checker.ValidationError):
        checker.validate(template(gpus={"no": "number"}), "1.34", strict=True)


@pytest.mark.promise("a job for each run, from job-template.json, which asks for the GPUs")
def test_a_job_of_the_worker_has_its_gpus_and_a_large_dev_shm() -> None:
    pod = template(gpus=4)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {"memory": "128Gi", "nvidia.com/gpu": 4}
    assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}} in pod["volumes"]
    assert pod["securityContext"]["runAsNonRoot"] is True


@pytest.mark.promise("Nothing is open beyond the cluster, and inside only to pods of this namespace")
def test_every_pod_is_not_root_has_limits_and_a_pinned_image() -> None:
    sets = [found for found in documents() if found["kind"] in ("Deployment", "StatefulSet")]
    pods = [found["spec"]["template"]["spec"] for found in sets]
    assert len(pods) == 3
    for pod in pods:
        (container,) = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert container["securityContext"] == {"allowPrivilegeEscalation": False}
        assert "memory" in container["resources"]["limits"]
        assert re.fullmatch(r"[\w/]+:[\w.-]*\d[\w.-]*", container["image"])
        values = {entry["name"]: entry for entry in container["env"]}
        assert all("value" not in entry for name, entry in values.items() if "PASSWORD" in name or "AUTH" in name)


def test_a_run_has_the_rights_that_the_kind_kubernetes_uses() -> None:
    (role,) = [d for d in documents() if d["kind"] == "Role" and d["metadata"]["name"] == "rowmill-run"]
    rights = {(resource, verb) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]}
    assert {("daskclusters", "create"), ("daskclusters", "get"), ("daskclusters", "delete"), ("secrets", "create"),
            ("pods", "list"), ("services", "get")} <= rights  # fmt: skip
    assert ("secrets", "get") not in rights


@pytest.mark.system
@pytest.mark.promise("A run that is going on gets SIGTERM first, ends its workers and lets go of its lock")
def test_the_unit_by_systemd_itself(tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("needs systemd-analyze")
    text = (INFRA / "rowmill.service").read_text()
    assert "ExecStart=/opt/rowmill/bin/rowmill serve\n" in text

    def verified(program: str) -> subprocess.CompletedProcess[str]:
        unit = tmp_path / "rowmill.service"
        unit.write_text(text.replace("/opt/rowmill/bin/rowmill", program))
        return subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)

    assert (verified("/bin/true").returncode, verified("/bin/true").stderr) == (0, "")
    assert "/no/program" in verified("/no/program").stderr
