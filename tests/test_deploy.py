"""The files of deploy/: the tool of each accepts it, and the command line in it audits the shipped export."""

import ast
import configparser
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from share_state.cli.command import FOUND, UNUSABLE
from share_state.cli.main import run
from share_state.config.loading import load_settings
from share_state.delta.committed import CommittedTables
from tests.profiles import nightly, some_of
from tests.sources.formats.tables import found, table_of, write
from tests.sources.kafka_cluster.broker import free_ports
from tests.truth import DATA

HOME = Path(__file__).parents[1]
DEPLOY = HOME / "deploy"
SERVICE, TIMER = DEPLOY / "systemd/share-state-audit.service", DEPLOY / "systemd/share-state-audit.timer"
CRON_JOB, DAG, DOCKERFILE = (
    DEPLOY / "kubernetes/share-state-audit.yaml",
    DEPLOY / "airflow/share_state_audit.py",
    DEPLOY / "Dockerfile",
)
EXPORTER, DEPLOYMENT = DEPLOY / "systemd/share-state-exporter.service", DEPLOY / "kubernetes/share-state-exporter.yaml"
DOCKERFILES = (DOCKERFILE, DEPLOY / "Dockerfile.exporter")
BIN = Path(sys.executable).parent


def _service(name: str, unit: Path = SERVICE) -> str:
    parser = configparser.ConfigParser(strict=False, interpolation=None, comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(unit)
    return parser["Service"][name]


def _kubernetes() -> tuple[dict[str, Any], dict[str, Any]]:
    config, job = yaml.safe_load_all(CRON_JOB.read_text())
    return config, job["spec"]["jobTemplate"]["spec"]


def _dag(name: str) -> Any:
    """A constant of the DAG."""
    for node in ast.parse(DAG.read_text()).body:
        if isinstance(node, ast.Assign) and name in ast.unparse(node.targets[0]):
            return ast.literal_eval(node.value)
    raise AssertionError(name)


def _entry_point(image: Path = DOCKERFILE) -> list[str]:
    (line,) = (line for line in image.read_text().splitlines() if line.startswith("ENTRYPOINT "))
    return ast.literal_eval(line.removeprefix("ENTRYPOINT "))


COMMANDS: dict[str, Callable[[], list[str]]] = {
    "systemd": lambda: shlex.split(_service("ExecStart")),
    "kubernetes": lambda: _entry_point() + _kubernetes()[1]["template"]["spec"]["containers"][0]["args"],
    "airflow": lambda: _dag("COMMAND"),
}


@pytest.mark.parametrize("scheduler", some_of(COMMANDS, 1))
def test_the_command_line_audits_the_export(scheduler: str, tmp_path: Path):
    """Only the paths are replaced: the export, the warehouse and the folder of the configuration."""
    program, *arguments = COMMANDS[scheduler]()
    assert Path(program).name == "share-state"
    config = (
        _kubernetes()[0]["data"]["audit.yaml"] if scheduler == "kubernetes" else (HOME / "conf/audit.yaml").read_text()
    )
    for broker in ("broker-1", "broker-2"):
        shutil.copytree(DATA / "4.3.1/happy", tmp_path / "exports" / broker)
    for folder in ("/exports", "/warehouse", "/lake"):
        config = config.replace(f"{folder}/", f"{tmp_path}{folder}/")
    for report in ("report.html", "share_state.prom"):
        config = config.replace(f" {report}", f" {tmp_path}/{report}")
    (tmp_path / "warehouse").mkdir()
    (tmp_path / "audit.yaml").write_text(config)
    assert run([argument.replace("/etc/share-state", str(tmp_path)) for argument in arguments]) == 0
    written = CommittedTables(load_settings(str(tmp_path / "audit.yaml"), (), {}).warehouse)
    assert (written.run["command"], written.run["cluster"]) == ("audit", "prod-eu")
    assert list(tmp_path.rglob("report.html"))
    assert list(tmp_path.rglob("share_state.prom"))


def test_findings_and_unusable_calls_are_not_retried():
    never = {FOUND, UNUSABLE}
    assert {int(code) for code in _service("RestartPreventExitStatus").split()} == never
    _, fail = _kubernetes()[1]["podFailurePolicy"]["rules"]
    assert (fail["action"], set(fail["onExitCodes"]["values"])) == ("FailJob", never)
    assert set(_dag("FOUND")) == never
    assert DAG.read_text().count("raise AirflowFailException") == len(never)


def _tool(name: str) -> str:
    found = shutil.which(name, path=f"{BIN}:/usr/bin") or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def test_systemd_accepts_the_units(tmp_path: Path):
    tool = _tool("systemd-analyze")
    for unit in (SERVICE, TIMER, EXPORTER):
        # It refuses programs that do not exist.
        (tmp_path / unit.name).write_text(unit.read_text().replace("/opt/share-state/bin/share-state", sys.executable))
    done = subprocess.run([tool, "verify", *tmp_path.iterdir()], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    times = [
        line.removeprefix("OnCalendar=") for line in TIMER.read_text().splitlines() if line.startswith("OnCalendar=")
    ]
    assert subprocess.run([tool, "calendar", *times], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("manifest", [CRON_JOB, DEPLOYMENT], ids=lambda path: path.stem)
def test_kubernetes_accepts_the_manifests(manifest: Path):
    done = subprocess.run(
        [_tool("kubernetes-validate"), "--strict", manifest], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count(" passed for resource ") == 2


@pytest.mark.parametrize("image", DOCKERFILES, ids=lambda path: path.name)
def test_hadolint_accepts_the_dockerfiles(image: Path):
    done = subprocess.run([_tool("hadolint"), image], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def _exporter_of_kubernetes() -> list[str]:
    deployment, _ = yaml.safe_load_all(DEPLOYMENT.read_text())
    return _entry_point(DOCKERFILES[1]) + deployment["spec"]["template"]["spec"]["containers"][0]["args"]


@pytest.mark.parametrize("command", ["systemd", "kubernetes"])
def test_the_command_line_of_the_exporter_serves_metrics(command: str, tmp_path: Path):
    """Only the cluster, the port and the folder of the state are replaced."""
    given = shlex.split(_service("ExecStart", EXPORTER)) if command == "systemd" else _exporter_of_kubernetes()
    program, *arguments = given
    assert Path(program).name == "share-state"
    write(table_of(found(DATA / "4.3.1/happy")), tmp_path / "in/a.parquet")
    replaced = {"kafka://broker-1:9092": str(tmp_path / "in"), "9404": str(free_ports(1)[0])}
    at = arguments.index("--checkpoint") + 1
    arguments[at] = str(tmp_path / "state")
    assert run([*(replaced.get(one, one) for one in arguments), "--once"]) == 0
    assert (tmp_path / "state/share_state_stream").is_file()


def test_both_images_are_built_of_the_same_files():
    first, second = (Path(f"{image}.dockerignore").read_text() for image in DOCKERFILES)
    assert first == second
    assert ["openjdk" in image.read_text() for image in DOCKERFILES] == [True, False]


@nightly("builds a wheel")
def test_the_files_in_the_image_are_enough_for_the_wheel(tmp_path: Path):
    copied = [
        line.split()[1:]
        for line in DOCKERFILE.read_text().splitlines()
        if line.startswith("COPY ") and "--from" not in line
    ]
    sent = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")}
    assert {name for *names, _ in copied for name in names} == sent
    for name in sent:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        copy = shutil.copytree if (HOME / name).is_dir() else shutil.copy
        copy(HOME / name, tmp_path / name)
    build = [
        "-m",
        "pip",
        "--quiet",
        "wheel",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "--wheel-dir",
        tmp_path / "wheels",
        ".",
    ]
    subprocess.run([sys.executable, *build], check=True, cwd=tmp_path)
    assert list((tmp_path / "wheels").glob("share_state-*.whl"))


_AIRFLOW = """
import sys
from datetime import timedelta
sys.path.insert(0, sys.argv[1])
import share_state_audit
dag = share_state_audit.share_state_audit()
dag.task_dict["audit"].retry_delay = timedelta(0)
(task,) = dag.test().get_task_instances()
print(task.state, task.try_number)
"""


@nightly("installs Airflow")
@pytest.mark.parametrize(
    ("code", "end"), [(0, "success 1"), (FOUND, "failed 1"), (UNUSABLE, "failed 1"), (3, "failed 3")]
)
def test_airflow_runs_the_dag(airflow: Path, tmp_path: Path, code: int, end: str):
    """A program that leaves with an exit code stands for the audit, which other tests run."""
    program = tmp_path / "bin/share-state"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nexit {code}\n")
    program.chmod(0o755)
    environment = {"PATH": f"{program.parent}:/usr/bin:/bin", "HOME": str(tmp_path), "AIRFLOW_HOME": str(tmp_path)}
    environment |= {"AIRFLOW__CORE__DAGS_FOLDER": str(DAG.parent), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    for arguments in (["-m", "airflow", "db", "migrate"], ["-c", _AIRFLOW, str(DAG.parent)]):
        done = subprocess.run([airflow, *arguments], capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == end


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("airflow") / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run(
        [folder / "bin/pip", "--quiet", "install", "--only-binary=:all:", "apache-airflow>=3.1,<4"], check=True
    )
    return folder / "bin/python"
