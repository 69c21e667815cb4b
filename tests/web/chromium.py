"""A real browser that has logged in to a kernel's dashboard."""

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
    renew(context, kernel, role)
    return context


def renew(context: Any, kernel: Kernel, role: Role = "operator") -> None:
    """Log in once more, as after a restart of the kernel."""
    page = context.new_page()
    page.goto(link_of(kernel, role))
    page.locator("#status", has_text=SHOWN).wait_for(state="attached")
    page.close()


@contextmanager
def pages(context: Any, kernel: Kernel) -> Iterator[Open]:
    """``show("agents?filter=x", width=390)``: a page that is shown; nothing may be said on its console."""
    opened: list[Any] = []
    said: list[str] = []
    base = urlsplit(link_of(kernel))._replace(path="/", query="", fragment="").geturl()

    def show(target: str = "overview", width: int = 1280, height: int = 800) -> Any:
        page = context.new_page()
        page.add_init_script(LOAD)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.set_viewport_size({"width": width, "height": height})
        page.goto(f"{base}#/{target}")
        page.locator("#status", has_text=SHOWN).wait_for(state="attached")
        opened.append(page)
        return page

    try:
        yield show
    finally:
        for page in opened:
            page.close()
    assert [text for text in said if "WebSocket" not in text and "ERR_CONNECTION" not in text] == []


def violations(page: Any) -> Any:
    """What axe finds on a page: each rule, with the first element that breaks it."""
    from axe_playwright_python.base import AXE_FILE_PATH  # type: ignore[import-untyped]

    page.evaluate(AXE_FILE_PATH.read_text())
    found = """async () => (await axe.run({ resultTypes: ["violations"] }))
      .violations.map((one) => [one.id, one.nodes[0].html])"""
    return page.evaluate(found)
