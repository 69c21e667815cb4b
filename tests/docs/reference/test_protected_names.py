"""The page of protected names lists those that are protected."""

import re

from agentos.protected_names import BESIDE_REFS, BUILT, IN_GIT, OBEYED, STUBS, WATCHED
from tests.docs.blocks import ROOT


def test_the_page_lists_each_protected_name_in_its_part() -> None:
    text = (ROOT / "docs/reference/protected-names.md").read_text()
    _, made, watched, obeyed, configured = re.split(r"^## .*$", text, flags=re.MULTILINE)[:5]

    def named(part: str) -> set[str]:
        rows = [line for line in part.splitlines() if line.startswith(("| ", "In a repository", "Beside"))]
        return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}

    assert named(made) == {*STUBS, *IN_GIT, *BESIDE_REFS}
    assert named(watched) == {*WATCHED}
    assert named(obeyed) == {*OBEYED, *BUILT}
    assert "`core.hooksPath`" in configured
