"""The pages of recordings in a real browser."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.kernel import Kernel
from tests.web.chromium import Open, find_chromium, log_in, pages, violations

from .conftest import HOSTILE


@pytest.fixture(scope="module", autouse=True)
def _chromium_is_here() -> None:
    find_chromium()


def sideways(page: Any) -> int:
    """How far a page is wider than its window."""
    wider = "document.documentElement.scrollWidth - innerWidth"
    return int(page.evaluate(f"() => new Promise((done) => requestAnimationFrame(() => done({wider})))"))


@pytest.fixture(scope="module")
def viewer(chromium: Any, kernel: Kernel) -> Iterator[Open]:
    with pages(log_in(chromium, kernel, "viewer"), kernel) as show:
        yield show


def test_a_life_is_opened_from_its_agent_and_a_call_shows_what_was_asked_and_answered(open_page: Open) -> None:
    page = open_page("agents?agent=coder")
    page.get_by_role("tab", name="recordings").click()
    page.get_by_role("link", name="coder-1, coder/1").click()

    page.get_by_role("heading", name="coder-1").wait_for()
    page.locator(".waterfall").get_by_role("button", name="THINK").last.click()
    page.locator(".detail", has_text="said 2").wait_for()
    assert HOSTILE in page.locator(".detail").inner_text()
    assert page.locator("#main img").count() == 0
    assert violations(page) == []


@pytest.mark.parametrize("target", ["recordings", "recordings?rec=coder-1", "agents?agent=coder&tab=recordings"])
def test_a_page_of_recordings_is_accessible_and_doesnt_scroll_sideways(open_page: Open, target: str) -> None:
    page = open_page(target)
    page.locator(".waterfall, .recordings").first.wait_for()
    for width in (360, 1440):
        page.set_viewport_size({"width": width, "height": 800})
        assert sideways(page) <= 0, width
        assert violations(page) == [], width


def test_a_viewer_sees_the_list_and_no_link_into_it(viewer: Open) -> None:
    page = viewer("recordings")
    page.get_by_role("cell", name="coder-1, coder/1").wait_for()
    assert page.locator("#main td a").count() == 0
    assert violations(page) == []
    page = viewer("recordings?rec=coder-1")
    page.get_by_role("alert").get_by_text("doesn't show this of recordings").wait_for()
