"""What README and docs show is what happens."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks_of, pages
from tests.docs.frameworks import give_framework
from tests.docs.visit import CHECKS, Visit
from tests.support.runs.rows import each_row
from tests.system.jails import need_cgroups

# The examples of these pages use the agents that the page on the right sets up.
CALLS = "docs/reference/calls/README.md"
STANDS_ON = {"docs/reference/calls": CALLS}
# The kernels and commands of these pages are executed, as a reader executes them, not forked.
EXECUTED = {"README.md", "docs/tutorials/first-agent.md"}
# These pages of calls have one kernel: what they show changes nothing that another one of them shows.
ONLY_LOOK = frozenset(
    "ack approvals cancel chunk exit explain get_contents get_perms hello http images inspect list logs mail "  # noqa: SIM905
    "metrics_agent metrics_all_agents metrics_cgroup metrics_system noop now poll_events random read reload "
    "replay_stop snapshots status subscribe tool_call tools tree unsubscribe usage".split()
)
# And so do these: what each of them changes is its own, or is as before at its end.
CHANGE_OWN = frozenset(
    "async_poll broadcast emit exec get_audit_log keys llm_report record_start record_stop recv restart resume "  # noqa: SIM905
    "send set_audit_config set_perms start think write".split()
)
# What these pages show is counted by control groups.
COUNTED = {
    "docs/how-to/give-an-agent-a-budget.md",
    "docs/how-to/watch-what-agents-use.md",
    "docs/reference/calls/list.md",
    "docs/reference/calls/metrics_agent.md",
    "docs/reference/calls/metrics_all_agents.md",
    "docs/reference/calls/metrics_cgroup.md",
    "docs/reference/calls/usage.md",
}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@each_row("page", pages(), ids=name_of)
def test_every_block_has_a_language_that_is_checked(page: Path) -> None:
    unknown = [f"{block.where}: {block.language}" for block in blocks_of(page) if block.language not in CHECKS]

    assert unknown == []


@contextlib.contextmanager
def visiting(page: Path) -> Iterator[Visit]:
    """A visit of a page that has done what the page stands on."""
    visit = Visit(execute=name_of(page) in EXECUTED)
    try:
        give_framework(name_of(page), visit.home)
        below = STANDS_ON.get(name_of(page.parent))
        for block in blocks_of(ROOT / below) if below is not None and name_of(page) != below else ():
            visit.do(block)
        yield visit
    finally:
        visit.close()


@pytest.fixture(scope="module")
def share(kernels: None) -> Iterator[Callable[[frozenset[str]], Visit]]:
    """``share(ONLY_LOOK)``: the visit of all these pages of calls."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def begin(_: frozenset[str]) -> Visit:
            visit = stack.enter_context(visiting(ROOT / CALLS))
            for block in blocks_of(ROOT / CALLS):
                visit.do(block)
            return visit

        yield begin


@pytest.mark.parametrize("page", [page for page in pages() if any(blocks_of(page))], ids=name_of)
@pytest.mark.usefixtures("executed_page", "kernels")
def test_a_page_does_what_it_shows(page: Path, request: pytest.FixtureRequest) -> None:
    if name_of(page) in COUNTED:
        need_cgroups(request.getfixturevalue("kernel"))
    with contextlib.ExitStack() as stack:
        calls = page.parent == (ROOT / CALLS).parent
        together = [names for names in (ONLY_LOOK, CHANGE_OWN) if calls and page.stem in names]
        visit = request.getfixturevalue("share")(*together) if together else stack.enter_context(visiting(page))
        for block in blocks_of(page):
            visit.do(block)
