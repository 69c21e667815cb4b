import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from agentos.agents import peers
from agentos.agents.peers import line_of

# Two generations: the pids of a child and of its child.
CHAIN = (
    "import os, sys\nprint(os.getpid(), flush=True)\nif os.fork(): os.wait()\nprint(os.getpid(), flush=True)\ninput()"
)


@pytest.fixture
def chain() -> Iterator[tuple[int, int]]:
    with subprocess.Popen([sys.executable, "-c", CHAIN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline()), int(process.stdout.readline())
        process.communicate()


def test_the_nearest_agent_counts(chain: tuple[int, int]) -> None:
    parent, child = chain

    assert line_of(child, frozenset({parent, child})) == child
    assert line_of(child, frozenset({parent})) == parent


def test_a_descendant_of_ours_that_is_no_agents_is_nobody_we_know(chain: tuple[int, int]) -> None:
    assert line_of(chain[1], frozenset()) is None


def test_who_does_not_descend_from_us_is_the_operator() -> None:
    assert line_of(os.getppid(), frozenset()) == 0
    assert line_of(0, frozenset()) == 0  # in no pid namespace that we see


def test_who_has_gone_already_is_nobody_we_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "parent_of", lambda pid: None)

    assert line_of(4711, frozenset()) is None


def test_an_ancestor_that_goes_meanwhile_sends_the_walk_back_to_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.getpid()
    answers = iter([4712, None, own])
    monkeypatch.setattr(peers, "parent_of", lambda pid: next(answers))

    assert line_of(4711, frozenset()) is None
