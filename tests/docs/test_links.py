"""Every link leads somewhere."""

import re
from pathlib import Path

from tests.docs.blocks import ROOT, pages
from tests.support.runs.rows import each_row

LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
PATHS = re.compile(r"`((?:agentos|supervisors|sdk|tests|demos|docs)/[\w./-]*)`")


def anchors(page: Path) -> set[str]:
    """What its headings are called in links, as forges do it."""
    headings = re.findall(r"^#+ (.*)$", CODE.sub(lambda found: found[0].strip("`"), page.read_text()), re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in kept}


@each_row("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_within_the_repository_leads_to_a_page_and_a_heading(page: Path) -> None:
    broken = []
    for found in LINK.finditer(CODE.sub("", page.read_text())):
        place, _, anchor = found["target"].partition("#")
        if place.startswith(("http://", "https://")):
            continue
        goal = (page.parent / place).resolve() if place else page
        if not goal.is_file() or (anchor and anchor not in anchors(goal)):
            broken.append(found["target"])

    assert broken == []


@each_row("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    named = set(PATHS.findall(page.read_text()))

    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_every_page_can_be_reached_from_the_front_door() -> None:
    reached, fresh = set[Path](), [ROOT / "README.md"]
    while fresh:
        page = fresh.pop()
        reached.add(page)
        targets = (found["target"].partition("#")[0] for found in LINK.finditer(CODE.sub("", page.read_text())))
        places = ((page.parent / target).resolve() for target in targets if not target.startswith("http"))
        fresh += [place for place in places if place.suffix == ".md" and place not in reached]

    rooms = {page for page in pages() if page.is_relative_to(ROOT / "docs")}
    indexes = {page for page in rooms if page.name == "README.md"}
    assert rooms - reached - indexes == set()
