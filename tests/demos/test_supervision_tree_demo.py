"""The supervision tree demo: what a person is told to notice is really there."""

import re
import signal

import pytest

from tests.demos.conftest import Interrupted, Run
from tests.support.runs.rounds import some


def test_the_story_has_growing_delays_a_given_up_agent_and_an_unharmed_pair(run: Run) -> None:
    shown = run("supervision_tree")

    announced = [float(delay) for delay in re.findall(r"unstable: will be restarted in ([\d.]+) s", shown)]
    assert announced[:3] == [0.2, 0.4, 0.8]  # where the demo is slow, it crashes once more
    row = re.search(r"waited +(.*)", shown)
    assert row is not None
    waited = [float(delay) for delay in re.findall(r"[\d.]+", row[1])]
    assert all(real >= said for real, said in zip(waited, announced[:3], strict=True))

    assert "root/doomed/hopeless: given up" in shown
    ends = re.findall(r"kernel \| (\w+): (exit status \d+|killed by \w+)", shown)
    assert ends.count(("hopeless", "exit status 1")) == 4
    assert ends.count(("unstable", "exit status 1")) >= 3
    assert {name for name, _ in ends} == {"hopeless", "unstable"}
    assert re.search(r"hopeless +- +failed +3 ", shown)
    for name in ("ping", "pong"):
        assert re.search(rf"{name} +\d+ +running +0 ", shown)
        assert len(set(re.findall(rf"{name}: running \(pid (\d+)\)", shown))) == 1

    stops = re.findall(r"kernel \| (\w+): stopped: ", shown)
    assert sorted(stops) in (["ping", "pong", "unstable"], ["ping", "pong"])


@pytest.mark.parametrize("number", some([signal.SIGHUP, signal.SIGTERM, signal.SIGINT], 1))
def test_a_demo_that_is_stopped_in_the_middle_leaves_nothing(number: signal.Signals, interrupted: Interrupted) -> None:
    interrupted("supervision_tree", "unstable: will be restarted", number)
