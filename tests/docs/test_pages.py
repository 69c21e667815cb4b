"""What README and docs show is what happens."""

from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks_of, pages
from tests.docs.frameworks import give_framework
from tests.docs.visit import CHECKS, Visit
from tests.support.kernel import running
from tests.support.runs.rows import each_row
from tests.system.jails import need_cgroups

# The examples of these pages use the agents that the page on the right sets up.
STANDS_ON = {"docs/reference/calls": "docs/reference/calls/README.md"}
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


@pytest.mark.parametrize("page", [page for page in pages() if any(blocks_of(page))], ids=name_of)
@pytest.mark.usefixtures("executed_page", "kernels")
def test_a_page_does_what_it_shows(page: Path) -> None:
    below = STANDS_ON.get(name_of(page.parent))
    if name_of(page) in COUNTED:
        with running() as kernel:
            need_cgroups(kernel)
    visit = Visit(execute=page.parent.name == "tutorials" or page == ROOT / "README.md")
    try:
        give_framework(name_of(page), visit.home)
        for block in blocks_of(ROOT / below) if below is not None and name_of(page) != below else ():
            visit.do(block)
        for block in blocks_of(page):
            visit.do(block)
    finally:
        visit.close()
