"""``agentos doctor`` as a person and as a program read it. What it finds is tested in tests/sandbox."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from agentos.sandbox.cgroups import discover
from agentos.sandbox.cgroups.discover import V1Hierarchies, V2Scope
from agentos.sandbox.report import remedies
from agentos.sandbox.report.doctor import Report, try_cgroup_limits
from agentos.sandbox.report.levels import Finding
from agentos.sandbox.report.walls import LAYERS
from agentos.userland.cli.kernel.doctor import report_lines
from tests.support.commands import run_agentos

Result = subprocess.CompletedProcess[str]


def doctor(*options: str, **env: str) -> Result:
    return run_agentos(["doctor", *options], Path.cwd(), {**os.environ, "AGENTOS_SOCKET": "/nowhere", **env})


def test_the_first_line_is_the_verdict_and_every_layer_has_a_row() -> None:
    done = doctor()

    verdict, strict, empty, header, *rows = done.stdout.splitlines()
    assert re.match(r"(standard: all walls; .*|none: .* not available: no agent can start in a sandbox)$", verdict)
    assert re.match(r"strict: (available too|no: .* missing)$", strict)
    assert (empty, header.split()[:2]) == ("", ["LAYER", "WORKS"])
    table = [row.split()[:2] for row in rows[: rows.index("")] if not row.startswith(" ")]
    assert [name for name, _ in table] == list(LAYERS)
    assert {works for _, works in table} <= {"yes", "no", "-"}
    assert done.returncode == (0 if verdict.startswith("standard") else 1)
    assert done.stderr == ""


def test_programs_get_the_same_as_json() -> None:
    said, done = doctor().stdout.splitlines(), doctor("--json")

    report = json.loads(done.stdout)
    assert report["verdict"] == said[0]
    assert (report["level"] == "strict") == (said[1] == "strict: available too")
    assert list(report["layers"]) == list(LAYERS)
    assert all(set(one) == {"asked", "works", "mechanism", "reason", "knob"} for one in report["layers"].values())
    assert all(one["works"] or one["reason"] for one in report["layers"].values())
    assert done.returncode == (1 if report["level"] == "none" else 0)


@pytest.mark.parametrize("columns", ["80", "100", "300"])
def test_lines_are_as_wide_as_the_terminal_within_reason(columns: str) -> None:
    verdict, *lines = doctor(COLUMNS=columns).stdout.splitlines()

    assert len(verdict) <= 100
    assert all(len(line) <= min(int(columns), 100) for line in lines if " /" not in line), lines  # paths stay whole


def test_it_says_whether_the_packages_are_there_that_the_configuration_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agentos.toml").write_text('[metrics]\nlisten = "127.0.0.1:9464"\n')

    facts = json.loads(doctor("--json").stdout)["facts"]

    assert facts["[metrics]"] == "the packages that it needs are installed"
    assert "[otel]" not in facts


def test_a_wrong_command_line_is_2() -> None:
    assert doctor("--nonsense").returncode == 2
    assert doctor("argument").returncode == 2


def test_nothing_is_left_where_the_state_would_be(tmp_path: Path) -> None:
    doctor(XDG_STATE_HOME=str(tmp_path), HOME=str(tmp_path))

    assert list(tmp_path.iterdir()) == []


def test_no_control_group_is_left() -> None:
    found = discover.discover_here()
    places = [found.directory] if isinstance(found, V2Scope) else []
    places += found.directories.values() if isinstance(found, V1Hierarchies) else []

    try_cgroup_limits()

    assert [place for place in places if os.path.exists(f"{place}/{discover.instance_name()}")] == []


def test_a_limit_that_works_is_not_said_to_need_what_only_another_needs() -> None:
    watched = Finding(True, "not writable", "run as root", "watcher")
    layers = {name: Finding(True, mechanism="m") for name in LAYERS}
    layers |= {"memory": watched, "cpu": Finding(False, "not writable", "run as root")}
    report = Report("standard", "standard: ...", "strict: no: cpu missing", layers, {"kernel": "Linux"})

    assert "For memory by a control group, cpu: run as root" in list(report_lines(report, 80))


def test_knobs_are_told_once_and_a_profile_is_printed_whole() -> None:
    no = Finding(False, "TakeIdentity: Operation not permitted", remedies.APPARMOR_REMEDY)
    layers = {name: no if name in ("user_ns", "pid_ns") else Finding(True, mechanism="m") for name in LAYERS}
    report = Report("none", "none: ...", "strict: no: ...", layers, {"kernel": "Linux"}, remedies.apparmor_profile())

    lines = list(report_lines(report, 80))

    (told,) = [line for line in lines if line.startswith("For ")]
    assert told.startswith("For user_ns, pid_ns: install the AppArmor profile")
    start = lines.index("abi <abi/4.0>,")
    assert "\n".join(lines[start:]).startswith(remedies.apparmor_profile())
