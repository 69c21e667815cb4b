"""The security demo: a jail stops all that succeeds without one, and a host without jails is told so."""

import os
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.demos.conftest import Interrupted, Run
from tests.support.runs.rounds import some
from tests.tools import crippled

SURE = (  # succeeds on any host, without a jail
    "network: ask a name server",
    "network: connect to a TCP service",
    "network: carry a secret out by HTTP",
    "network: use an abstract socket",
    "files: read the user's SSH key",
    "files: add a command to ~/.bashrc",
    "secrets: see the host's processes",
    "secrets: API key in an environment",
    "processes: kill another one",
)


def test_what_succeeds_without_a_jail_is_stopped_in_one(run: Run) -> None:
    shown = run("security")

    seen = re.sub(r" +", " ", shown.partition("Seen from outside\n")[2])
    assert " not isolated services that were asked: dns, http, tcp, unix\n" in seen
    assert " isolated services that were asked: none\n" in seen
    assert " not isolated the process that was attacked: killed by signal 9\n" in seen
    assert " isolated the process that was attacked: lives\n" in seen
    assert " not isolated ~/.bashrc: changed\n" in seen
    assert " isolated ~/.bashrc: as it was\n" in seen
    bombs = [int(most) for most in re.findall(r"the fork bomb: (\d+) processes", seen)]
    assert bombs[1] <= 64 < bombs[0] <= 301
    assert [line for line in shown.splitlines() if len(line) > 100] == []
    table = shown.partition("STOPPED BY\n")[2].partition("\n\n")[0]
    rows = {line[:37].strip(): (line[37:58].strip(), line[58:80].strip(), line[80:]) for line in table.splitlines()}
    assert len(rows) == 15
    assert all(rows[attempt][0] == "DONE" for attempt in SURE)
    assert all(re.match(r"stopped: E[A-Z]+$|stopped at \d+$", isolated) for _, isolated, _ in rows.values())
    assert all(by and not by.startswith(("NOTHING", "not by")) for _, _, by in rows.values())
    assert "15 attempts" in shown
    assert "and 0 in one" in shown


def test_the_brief_demo_prints_and_draws_the_table_and_the_verdict(run: Run, tmp_path: Path) -> None:
    shown = run("security", "--brief", "--picture", str(tmp_path / "table.svg"))

    stopped = shown.count("stopped: E")
    # Linux stops some of an ordinary user's without a jail, too.
    assert stopped == 14 if os.geteuid() == 0 else stopped >= 14
    assert "and 0 in one" in shown
    assert "kernel." not in shown
    assert len(shown.splitlines()) <= 32
    svg = ElementTree.parse(tmp_path / "table.svg")
    texts = [text.text or "" for text in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert len(texts) == 16 * 4 + 1
    assert texts[-1].endswith("and 0 in one.")


@pytest.mark.parametrize("when", some(["kernel.spawn('bare-bomb'", "kernel.spawn('isolated-intruder'"], 1))
def test_stopped_in_the_middle_it_leaves_nothing(when: str, interrupted: Interrupted) -> None:
    interrupted("security", when)


@pytest.mark.parametrize("demo", ["security", "fault_isolation"])
def test_on_a_host_that_cannot_isolate_nothing_is_let_loose_and_the_knob_is_named(
    demo: str, place: Path, environment: dict[str, str]
) -> None:
    command = [sys.executable, "-m", f"demos.{demo}"]

    done = crippled.run("--sysctl", "user.max_user_namespaces=0", command=command, env=environment)

    assert done.returncode == 1
    assert "THIS HOST CAN'T ISOLATE" in done.stderr
    assert "user.max_user_namespaces" in done.stderr
    assert "Side by side" not in done.stdout
    assert list(place.iterdir()) == []
