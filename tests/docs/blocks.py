"""Fenced blocks out of Markdown."""

import re
from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^(?P<indent>\s*)(?P<fence>`{3,}|~{3,})(?P<language>\S*)(?P<rest>.*)$")
NAMED = re.compile(r"^# (?P<name>[\w./-]+\.\w+)$")


@frozen
class Block:
    """One fenced block; ``line`` is where its opening fence stands."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def file(self) -> str | None:
        """The file that its first line says it is."""
        found = NAMED.match(self.text.partition("\n")[0])
        return found["name"] if found else None


def pages() -> list[Path]:
    """Every page for people, front door first."""
    front = [ROOT / name for name in ("README.md", "CHANGELOG.md", "sdk/README.md", "demos/README.md")]
    return [*front, *sorted((ROOT / "docs").rglob("*.md"))]


def blocks_of(page: Path) -> Iterator[Block]:
    """The blocks of a page in order; a fence that can't be understood is an error, never skipped."""
    opened: tuple[int, re.Match[str]] | None = None
    content: list[str] = []
    for number, line in enumerate(page.read_text().split("\n"), 1):
        found = FENCE.match(line)
        if opened is None and found is None:
            continue
        if opened is None and found is not None:
            assert not found["indent"], f"{page}:{number}: a fence begins its line"
            assert found["fence"] == "```", f"{page}:{number}: a fence is three backticks"
            assert found["language"], f"{page}:{number}: a fence names its language"
            assert not found["rest"].strip(), f"{page}:{number}: a fence has nothing but its language"
            opened, content = (number, found), []
        elif opened is not None and line == "```":
            yield Block(page, opened[0], opened[1]["language"], "\n".join(content) + "\n")
            opened = None
        else:
            content.append(line)
    assert opened is None, f"{page}: the fence of line {opened and opened[0]} isn't closed"
