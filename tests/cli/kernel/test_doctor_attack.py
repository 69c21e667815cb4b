"""``agentos doctor --attack`` as a person and as a program see it. What it tries is tested in tests/security."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.wire import PATIENCE
from tests.tools import crippled

Result = subprocess.CompletedProcess[str]


def doctor(*options: str, **env: str) -> Result:
    return subprocess.run(
        [sys.executable, "-m", "agentos", "doctor", "--attack", *options],
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE,
        check=False,
    )


@pytest.fixture(scope="module")
def for_programs(long: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """One attack, with a home and a place for temporary files of its own."""
    home = tmp_path_factory.mktemp("home")
    done = doctor("--json", HOME=str(home), XDG_STATE_HOME=str(home / "state"), AGENTOS_SOCKET="/nowhere")
    report = json.loads(done.stdout)
    if all(one["outcome"] in ("unclear", "n/a") for one in report["checks"]):
        if "AGENTOS_MUST_SANDBOX" in os.environ:
            pytest.fail(report["checks"][0]["detail"])
        pytest.skip(report["checks"][0]["detail"])
    return done, home


def test_nothing_comes_through_that_must_not(for_programs: tuple[Result, Path]) -> None:
    done, _ = for_programs
    report = json.loads(done.stdout)

    outcomes = {one["check"]: one["outcome"] for one in report["checks"]}
    assert {name for name, outcome in outcomes.items() if outcome in ("escaped", "unclear")} == set()
    assert report["totals"].endswith(" accepted of 65")
    assert report["seconds"] > 1
    assert all(set(one) == {"check", "tries", "outcome", "wall", "detail"} for one in report["checks"])
    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_is_left_behind(for_programs: tuple[Result, Path]) -> None:
    _, home = for_programs

    assert list(home.iterdir()) == []


@pytest.mark.usefixtures("long")
def test_where_agents_get_no_walls_nothing_is_said_to_be_blocked() -> None:
    """People get a table, and a status that isn't 0: nobody has attacked anything."""
    command = [sys.executable, "-m", "agentos", "doctor", "--attack"]
    done = crippled.run("--sysctl", "user.max_user_namespaces=0", command=command)

    if done.returncode == 125:
        pytest.skip(done.stderr)
    header, *rows = done.stdout.splitlines()
    assert header.split()[0] == "CHECK"
    assert not [row for row in rows if " blocked " in row]
    assert "65 unclear of 65" in rows
    assert rows[-1].startswith("took ")
    assert "about ten seconds" in done.stderr
    assert done.returncode == 1
