"""A recorded life is replayed from its page: what is found of each call stands beside the recorded one."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.kernel import Kernel, until
from tests.web.chromium import Open, find_chromium, violations

from .conftest import CODER
from .test_pages import sideways

NOW = ".waterfall .row:not(.axis) .now"


@pytest.fixture(scope="module", autouse=True)
def _chromium_is_here() -> None:
    find_chromium()


def replayed(open_page: Open, recording: str, verdict: str) -> Any:
    """The page after a replay."""
    page = open_page(f"recordings?rec={recording}")
    page.get_by_role("button", name="replay", exact=True).click()
    page.get_by_role("status").locator("b", has_text=verdict).wait_for()
    return page


def test_an_unchanged_program_makes_each_call_again(open_page: Open) -> None:
    page = replayed(open_page, "coder-1", "identical")

    assert page.locator(NOW).all_inner_texts() == ["= exact"] * 6
    assert violations(page) == []


def test_drift_is_marked_by_words_and_opens_its_differences(open_page: Open, code: Path) -> None:
    said = 'f"turn {turn} <img src=x onerror=alert(1)>"'
    (code / "changed.py").write_text(CODER.replace(said, said + ' + " <b>please</b>" * (turn > 0)'))

    page = replayed(open_page, "changed-1", "drifted")

    assert page.locator(NOW).all_inner_texts() == ["= exact", "= exact", "~ drifted", "= exact", "~ drifted", "= exact"]
    page.locator(".waterfall").get_by_role("button", name="THINK").nth(1).click()
    page.locator(".diff", has_text="+ <b>please</b>").wait_for()
    assert page.locator("#main .diff b").count() == 0
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        assert sideways(page) <= 0, width
        assert violations(page) == [], width


def test_a_divergence_is_open_at_its_words(open_page: Open, code: Path) -> None:
    (code / "changed.py").write_text(CODER.replace("turn {turn}", "round {turn}"))

    page = replayed(open_page, "changed-1", "diverged")

    assert page.locator(NOW).all_inner_texts() == ["≠ diverged"] + ["not made"] * 5
    diff = page.locator(".diff").first
    diff.wait_for()
    assert "- turn" in diff.inner_text()
    assert "+ round" in diff.inner_text()
    assert violations(page) == []


def test_what_was_found_of_each_call_is_told_when_it_is_asked_for(kernel: Kernel) -> None:
    with kernel.client() as client:
        name = client.replay_start(path="coder-1")["name"]
        until(lambda: client.replay_status(name)["state"] != "RUNNING", "the replay has ended")

        assert client.replay_status(name)["calls"] is None
        assert [each["how"] for each in client.replay_status(name, calls=True)["calls"]] == ["exact"] * 6
