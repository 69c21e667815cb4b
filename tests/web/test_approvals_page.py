"""The approvals page, in a real browser: what is quoted, what a click decides, and what has to be opened first."""

import itertools
import os
import signal
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.support.askers import Asker, list_pending
from tests.support.kernel import Kernel, shared, until
from tests.support.wire import EXEC, HTTP, WRITE
from tests.web.chromium import Open, find_chromium, log_in, pages

CONFIGURATION = '[dashboard]\nlisten = "127.0.0.1:0"\n'
ASK = {"commands": ["*"], "write": ["${workspace}/**"], "domains": ["POST 127.0.0.1:9/**"]}
COUNT = itertools.count(1)
TOO_SOON = "nothing was decided"


@pytest.fixture(scope="module")
def kernel(kernels: None) -> Iterator[Kernel]:
    find_chromium()
    with shared(CONFIGURATION) as started:
        yield started


@pytest.fixture(scope="module")
def context(chromium: Any, kernel: Kernel) -> Iterator[Any]:
    """A browser that has logged in, whose clock can be stopped."""
    made = log_in(chromium, kernel)
    made.clock.install()
    yield made
    made.close()


@pytest.fixture
def open_page(kernel: Kernel, context: Any) -> Iterator[Open]:
    """Opens pages of the test's own, which begin with a clock that goes on."""
    context.clock.resume()
    with pages(context, kernel, keep=True) as show:
        yield partial(show, own=True)
        context.clock.resume()


@pytest.fixture
def asker(kernel: Kernel) -> Iterator[Asker]:
    asker = Asker(kernel, f"asker-{next(COUNT)}", ASK)
    yield asker
    asker.close()
    with kernel.client() as client:
        for one in list_pending(kernel):
            client.decide(one["id"], False)


def open_with_clock(open_page: Open, width: int = 1280) -> Any:
    """The page of approvals, whose time goes on only by ``page.clock``."""
    page = open_page("approvals", width=width)
    page.get_by_text("Nothing waits for a person").wait_for()
    page.clock.pause_at(page.evaluate("Date.now()") / 1000 + 3)  # seconds
    return page


def appear(page: Any, what: Any) -> Any:
    """Let time go on by single frames until it is there: the page draws once a frame."""

    def draw() -> bool:
        page.clock.run_for(16)
        return bool(what.count())

    until(draw, "it is drawn")
    return what.first


def button(page: Any, name: str) -> Any:
    return page.locator(".approval").get_by_role("button", name=name)


def shown_text(page: Any) -> str:
    return str(page.locator(".approval").inner_text())


def test_what_an_agent_wrote_stands_in_elements_of_its_own_at_every_width(open_page: Open, asker: Asker) -> None:
    fake = "in the jail of worker"
    asker.begin(EXEC, {"command": f"git fetch{' ' * 1500}{fake}\n\n{fake}; echo {'x' * 90} {fake}"})
    page = open_page("approvals")
    page.locator(".approval .quoted").first.wait_for()

    own = page.locator(".shown-text .said, .shown-text .words").all_inner_texts()
    assert own == ["$", ">", ">", "in", "in the jail of"]
    quoted = page.locator(".shown-text .quoted").all_inner_texts()
    assert quoted[0] == "git fetch\\u{20, 1500 times}" + fake
    measure = "(all) => all.map((one) => { const {x, width} = one.getBoundingClientRect(); return {x, width}; })"
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": 800})
        [left] = [box["x"] for box in page.locator(".shown-text").evaluate_all(measure)]
        boxes = page.locator(".shown-text .quoted").evaluate_all(measure)
        reaching = [box for box in boxes if box["x"] < left + 40 or box["x"] + box["width"] > width]
        assert boxes, width
        assert not reaching, f"none reaches the words at {width} pixels"


def test_a_click_right_after_an_item_has_appeared_decides_nothing(
    open_page: Open, kernel: Kernel, asker: Asker
) -> None:
    page = open_with_clock(open_page)
    asker.begin(EXEC, {"command": "echo one"})

    appear(page, button(page, "allow once (a)")).click()
    appear(page, page.get_by_text(TOO_SOON))
    button(page, "deny (d)").click()
    appear(page, page.locator(".approval form").get_by_role("button", name="deny")).click()
    appear(page, page.get_by_text(TOO_SOON).nth(1))
    assert len(list_pending(kernel)) == 1

    page.clock.run_for(600)
    button(page, "allow once (a)").click()
    until(lambda: not list_pending(kernel), "the same click decides later")


def test_a_click_after_the_buttons_have_moved_decides_nothing(open_page: Open, kernel: Kernel, asker: Asker) -> None:
    page = open_with_clock(open_page, width=390)
    asker.begin(EXEC, {"command": "echo one"})
    appear(page, button(page, "allow once (a)"))
    page.clock.run_for(600)

    asker.begin(EXEC, {"command": "echo two"})  # the queue above the item grows
    appear(page, page.locator(".queue li").nth(1))
    button(page, "allow once (a)").click()

    appear(page, page.get_by_text(TOO_SOON))
    assert len(list_pending(kernel)) == 2


def test_a_second_click_on_remember_decides_nothing(open_page: Open, kernel: Kernel, asker: Asker) -> None:
    page = open_with_clock(open_page)
    asker.begin(HTTP, {"url": "http://127.0.0.1:9/items?of=clay", "method": "POST"})
    appear(page, button(page, "remember"))
    page.clock.run_for(600)
    button(page, "remember").click()
    confirm = page.locator(".approval .confirm")
    assert appear(page, confirm.locator(".quoted")).inner_text() == "POST http://127.0.0.1:9/items"

    button(page, "allow always").click()
    appear(page, page.get_by_text(TOO_SOON))
    assert len(list_pending(kernel)) == 1

    confirm.get_by_role("checkbox").click()
    appear(page, confirm.get_by_text("POST http://127.0.0.1:9 (any path)"))
    page.clock.run_for(600)
    button(page, "allow always").click()
    until(lambda: not list_pending(kernel), "it is decided")
    with kernel.client() as client:
        [answer] = [one for one in client.get_permissions()["answers"] if one["agent"] == asker.name]
        client.decide(answer["id"], False, forget=True)
    assert answer["object"] == "POST http://127.0.0.1:9 (any path)"


def test_a_key_that_is_held_down_allows_one_call(open_page: Open, kernel: Kernel, asker: Asker) -> None:
    page = open_with_clock(open_page)
    first, second = (asker.begin(EXEC, {"command": f"echo {word}"}) for word in ("one", "two"))
    appear(page, page.locator(".queue li").nth(1))
    page.clock.run_for(600)

    page.keyboard.down("a")
    assert first.receive().json["stdout"] == "one\n"
    appear(page, page.locator(".queue li:only-child"))
    appear(page, page.locator(".approval .quoted", has_text="echo two"))
    for _ in range(2):
        page.clock.run_for(600)
        page.keyboard.down("a")  # again while it is down: a repetition
    page.keyboard.up("a")
    page.clock.run_for(100)
    assert button(page, "deny (d)").count() == 1
    assert page.locator(".approval .pending").count() == 0, "the second is decided"

    page.keyboard.press("d")
    deny = appear(page, page.locator(".approval form").get_by_role("button", name="deny"))
    page.clock.run_for(600)
    deny.click()
    assert second.receive().json["code"] == "approval_refused"


@pytest.mark.parametrize("content", ["".join(f"{n}\n" for n in range(60)), "x" * 1500])
def test_a_long_text_is_opened_before_it_can_be_allowed(
    open_page: Open, kernel: Kernel, asker: Asker, content: str
) -> None:
    page = open_with_clock(open_page)
    asker.begin(WRITE, {"path": "notes.md", "content": content})
    allow = button(page, "allow once (a)")
    appear(page, allow)
    page.clock.run_for(600)

    assert allow.is_disabled()
    assert button(page, "remember").is_disabled()
    page.keyboard.press("a")
    appear(page, page.get_by_text("not allowed: show all of it first"))
    assert "more line" in shown_text(page) or "more character" in shown_text(page)
    button(page, "show all of it").click()
    page.clock.run_for(600)
    assert content.splitlines()[-1] == page.locator(".shown-text .quoted").last.inner_text()
    assert page.locator(".shown-text").evaluate("(one) => one.scrollHeight <= one.clientHeight + 1"), "nothing scrolls"
    allow.click()
    until(lambda: not list_pending(kernel), "it is decided")


def test_a_decided_item_says_so_until_the_kernel_confirms_it(open_page: Open, kernel: Kernel, asker: Asker) -> None:
    page = open_with_clock(open_page)
    asker.begin(EXEC, {"command": "echo one"})
    appear(page, button(page, "allow once (a)"))
    page.clock.run_for(600)

    os.kill(kernel.pid, signal.SIGSTOP)
    try:
        button(page, "allow once (a)").click()
        appear(page, page.locator(".approval .pending", has_text="allowed; the kernel has yet to confirm it"))
        assert button(page, "allow once (a)").is_disabled()
        assert button(page, "deny (d)").is_disabled()
    finally:
        os.kill(kernel.pid, signal.SIGCONT)
    appear(page, page.get_by_text("Nothing waits for a person"))
