"""A real browser that has logged in to a kernel's dashboard."""

import itertools
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from agentos.userland.web.links import Role
from tests.support.kernel import Kernel
from tests.support.wire import PATIENCE
from tests.web.conftest import link_of

if TYPE_CHECKING:
    from playwright.sync_api import Page

FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")
SHOWN = re.compile("kernel up")  # by a page that is logged in
Open = Callable[..., "Page"]

# `load("core/html.js")` is a module of the page, as it runs there.
LOAD = 'window.load = async (path) => (await import(document.querySelector("script[type=module]").src)).modules[path];'


def find_chromium() -> str:
    """Chromium; rather the one without windows, which takes half of the CPU time."""
    chromium = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if chromium is None:
        reason = "no chromium here, so no page was looked at: apt-get install chromium-headless-shell"
        if os.environ.get("AGENTOS_MUST_SANDBOX") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return chromium


@contextmanager
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=find_chromium(), args=list(FLAGS))
        yield started
        started.close()


def log_in(browser: Any, kernel: Kernel, role: Role = "operator", **options: object) -> Any:
    """A browser context with a session of its own."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, reduced_motion="reduce", **options)
    context.set_default_timeout(PATIENCE * 1000)
    context.add_init_script(LOAD)
    renew(context, kernel, role)
    return context


def renew(context: Any, kernel: Kernel, role: Role = "operator") -> None:
    """Log in once more, as after a restart of the kernel."""
    page = take_tab(context)
    page.goto(link_of(kernel, role))
    page.locator("#status", has_text=SHOWN).wait_for(state="attached")
    leave_tab(page)


# -- Tabs --------------------------------------------------------------------------------------------------------------
# To load the page takes three times as much CPU time as to show another part of it, and a new tab, which is a new
# process, takes as much again. So a tab that has been used is left with its page, at a part that shows nothing.

LEFT = "#/more"
COUNT = itertools.count(1)
# A test that fails may leave a question or a dialog open.
ASKS = "load('parts/actions.js').then(({ asked }) => Boolean(asked.peek() || document.querySelector('dialog[open]')))"


def take_tab(context: Any) -> Any:
    return next((page for page in context.pages if page.url.endswith(LEFT)), None) or context.new_page()


def leave_tab(page: Any) -> None:
    page.evaluate(f"location.hash = '{LEFT}'; load('parts/actions.js').then(({{ toasts }}) => toasts.set([]))")


@contextmanager
def pages(context: Any, kernel: Kernel, keep: bool = False) -> Iterator[Open]:
    """``show("agents?filter=x", width=390)``: a page that is shown; nothing may be said on its console.

    With ``keep``, the tab of the first one is left to the next test, and its page too. ``own`` is for a page that is
    this test's alone, as it depends on what pages remember, or leaves them something to remember.
    """
    opened: list[Any] = []
    said: list[str] = []
    base = urlsplit(link_of(kernel))._replace(path="/", query="", fragment="").geturl()

    def on_console(message: Any) -> None:
        said.append(message.text)

    def on_error(error: Any) -> None:
        said.append(str(error))

    def show(target: str = "overview", width: int = 1280, height: int = 800, own: bool = False) -> Any:
        page = take_tab(context)
        page.on("console", on_console)
        page.on("pageerror", on_error)
        opened.append(page)
        page.set_viewport_size({"width": width, "height": height})
        page.goto(f"{base}?own={next(COUNT)}#/{target}" if own else f"{base}#/{target}")
        page.locator("#status", has_text=SHOWN).wait_for(state="attached")
        return page

    try:
        yield show
    finally:
        kept = [page for page in opened[:1] if keep and not page.evaluate(ASKS)]
        for page in kept:
            leave_tab(page)
            page.remove_listener("console", on_console)
            page.remove_listener("pageerror", on_error)
        for page in opened:
            if page not in kept:
                page.close()
    assert [text for text in said if "WebSocket" not in text and "ERR_CONNECTION" not in text] == []


def violations(page: Any) -> Any:
    """What axe finds on a page: each rule, with the first element that breaks it."""
    from axe_playwright_python.base import AXE_FILE_PATH  # type: ignore[import-untyped]

    if page.evaluate("!window.axe"):
        page.evaluate(AXE_FILE_PATH.read_text())
    # What it would load before is style sheets of other origins and media, which pages of ours can't have.
    found = """async () => (await axe.run({ resultTypes: ["violations"], preload: false }))
      .violations.map((one) => [one.id, one.nodes[0].html])"""
    return page.evaluate(found)
