"""The page that says where a change of each kind goes."""

import re
from pathlib import Path

from tests.support.runs.rows import each_row

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "where-things-go.md"
ROW = re.compile(r"^\| `(?P<file>[^`]+)` \| .+ \| `(?P<example>[^`]+)` \|$", re.MULTILINE)
ROWS = [(found["file"], found["example"]) for found in ROW.finditer(PAGE.read_text())]


def test_every_row_of_the_page_is_read() -> None:
    assert len(ROWS) == PAGE.read_text().count("\n| `")


@each_row(("file", "example"), ROWS)
def test_each_file_has_its_example(file: str, example: str) -> None:
    assert example in (ROOT / file).read_text()
