"""``agentos demo``: finds the demos, whatever the current directory has, and passes their exit status on."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.demos.conftest import LONGEST
from tests.support.commands import run_agentos

ROOT = Path(__file__).parents[3]
AGENTOS = [sys.executable, "-m", "agentos"]


def test_a_demo_runs_from_a_directory_with_a_package_of_that_name(tmp_path: Path) -> None:
    (tmp_path / "demos").mkdir()
    (tmp_path / "demos" / "__init__.py").write_text("raise SystemExit('the wrong one')")

    command = [*AGENTOS[:1], "-P", *AGENTOS[1:], "demo", "security", "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LONGEST)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: agentos demo security ")


def test_without_a_name_each_is_listed_with_what_it_shows() -> None:
    done = run_agentos(["demo"], ROOT, os.environ)

    rows = dict(line.split(maxsplit=1) for line in done.stdout.splitlines()[1:])
    demos = {path.parent.name for path in Path(__file__).parents[3].glob("demos/*/__main__.py")}
    assert rows.keys() == demos
    assert rows["hello"] == "an agent is spawned, echoes a line through the kernel, and ends"


def test_a_demo_whose_extra_is_missing_says_which_and_the_list_does(tmp_path: Path) -> None:
    without = "import sys; sys.modules['mcp'] = None; "
    run = f"{without}import runpy; runpy.run_module('demos.mcp_tools', run_name='__main__')"
    listed = f"{without}sys.argv[1:] = ['demo']; from agentos.__main__ import main; main()"
    told = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LONGEST, cwd=ROOT)
        for code in (run, listed)
    ]

    assert told[0].returncode == 1
    assert told[0].stderr.strip() == ("this demo needs the package mcp: pip install '.[mcp]' in AgentOS's repository")
    [row] = [line for line in told[1].stdout.splitlines() if line.startswith("mcp_tools ")]
    assert row.endswith("(not here: it needs pip install '.[mcp]')")
    assert told[1].stdout.count("not here") == 1


def test_arguments_are_the_demos_own(tmp_path: Path) -> None:
    unknown, missing = (
        run_agentos(["demo", *words], ROOT, os.environ)
        for words in (["helo"], ["hello", "--socket", str(tmp_path / "none")])
    )

    assert (unknown.returncode, "did you mean hello?" in unknown.stderr) == (1, True)
    assert (missing.returncode, f"no kernel at {tmp_path}/none" in missing.stderr) == (1, True)


@pytest.mark.usefixtures("kernels")
def test_the_dashboards_tree_runs_until_ctrl_c() -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    command = [*AGENTOS, "demo", "dashboard"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as running:
        assert running.stdout is not None
        shown = ""
        for line in running.stdout:
            shown += line
            if "kernel | coder: running" in line:
                break
        running.send_signal(signal.SIGINT)
        shown += running.communicate(timeout=LONGEST)[0]

    assert running.returncode == 0
    assert "Another link: agentos dashboard --socket" in shown
    assert "kernel | stopped" in shown
