"""Pages that stay open: while they are hidden or scrolled, and over restarts of agents and of the kernel."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.kernel import Kernel, shared, until
from tests.support.ports import free_port
from tests.support.runs.rounds import some
from tests.web.chromium import Open, find_chromium, log_in, pages, renew

CODER = Path(__file__).parents[2] / "demos" / "dashboard" / "coder.py"
CONFIGURATION = f"""[dashboard]
listen = "127.0.0.1:PORT"
[permissions.worker]
level = "sandboxed"
ask = {{ commands = ["git push *"] }}
[[supervisor.children]]
name = "writer"
command = ["sh", "-c", "seq 60; echo begun; exec sleep 1000"]
limits = {{ memory = "64M" }}
[[supervisor.children]]
name = "fragile"
command = ["sleep", "1000"]
max_restarts = 0
on_give_up = "fail"
[[supervisor.children]]
name = "coder"
script = "{CODER}"
permissions = "worker"
"""
# What a browser does to a tab that isn't in front. A tab of a test is always in front.
HIDE = """() => {
  Object.defineProperty(document, "hidden", { value: true, configurable: true });
  window.requestAnimationFrame = () => 0;
  document.dispatchEvent(new Event("visibilitychange"));
}"""
FRAMES = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
# Where the first line in view stands, and which one it is.
PLACE = """() => {
  const box = document.querySelector(".log");
  const top = box.getBoundingClientRect().top;
  const line = [...box.querySelectorAll(".line")].find((one) => one.getBoundingClientRect().bottom > top);
  return [line.textContent, line.getBoundingClientRect().top - top];
}"""
WRITE = """(count) => {
  const lines = Array.from({ length: count }, (_, n) => ({ at: 2e9 + n, stream: "stdout", text: `more ${n}` }));
  document.querySelector("os-log").add({ lines, missed: 1 });
}"""


@pytest.fixture(scope="module")
def kernel(kernels: None) -> Iterator[Kernel]:
    find_chromium()
    with shared(CONFIGURATION.replace("PORT", str(free_port()))) as started:
        yield started
        with started.client() as client:
            client.kill("coder")  # it would ask again while the kernel is waited for to be idle


def test_a_page_that_does_not_exist_is_said_not_to_exist(open_page: Open) -> None:
    page = open_page()
    for name in ("constructor", "__proto__", "toString"):
        page.goto(page.url.partition("#")[0] + f"#/{name}?agent=writer")

        page.get_by_text(f"There is no page {name}.").wait_for()
        page.locator(".panel h2", has_text="writer").wait_for()


@pytest.mark.parametrize("count", some([5, 3000, 700], 2))  # a log keeps 2000
def test_a_log_that_was_scrolled_up_stays_where_it_is(open_page: Open, count: int) -> None:
    page = open_page("agents?agent=writer&tab=logs")
    page.locator(".log .line", has_text="begun").first.wait_for()
    page.locator(".log").evaluate("(box) => { box.scrollTop = 100; }")
    page.get_by_role("button", name="follow", pressed=False).wait_for()
    before = page.evaluate(PLACE)

    page.evaluate(WRITE, count)
    page.get_by_role("button", name=f"{min(count, 2000)} new").wait_for()
    page.get_by_label("search in the output").fill("a text that is longer than the field is wide " * 9)
    page.get_by_label("search in the output").press("End")
    page.evaluate(FRAMES)
    page.get_by_role("button", name="follow", pressed=False).wait_for()
    page.get_by_label("search in the output").fill("")
    page.evaluate(FRAMES)
    page.locator(".log").evaluate("(box) => { box.scrollTop = 100; }")
    page.evaluate(FRAMES)
    assert page.evaluate(PLACE) == before
    page.get_by_role("button", name="new").click()
    page.locator(".log .line", has_text=f"more {count - 1}").wait_for()
    page.get_by_role("button", name="follow", pressed=True).wait_for()


def test_of_a_long_line_as_much_is_shown_as_does_not_hold_up_the_page(open_page: Open) -> None:
    """What can't be seen takes eight characters each: a log of such lines took half a minute for each click."""
    page = open_page("agents?agent=writer&tab=logs")
    page.locator(".log .line", has_text="begun").first.wait_for()
    texts = ["\x01" * 16_000, "y" * 15_990 + "end of it"]

    page.evaluate(
        """(texts) => document.querySelector("os-log").add({
          lines: texts.map((text, n) => ({ at: 3e9 + n, stream: "stdout", text })), missed: 0 })""",
        texts,
    )
    long = page.locator(".log .line", has_text="more character")
    long.nth(1).wait_for()
    shown = long.locator("> :last-child").all_inner_texts()
    assert [text.rpartition("…")[2] for text in shown] == [" 15,500 more characters", " 13,999 more characters"]
    assert max(map(len, shown)) < 4100
    page.get_by_label("search in the output").fill("end of it")
    until(lambda: page.locator(".log .line").count() == 1, "what isn't shown is found, too")
    page.get_by_label("search in the output").fill("")


def test_an_agent_that_is_started_again_is_followed_again(open_page: Open, kernel: Kernel) -> None:
    page = open_page("agents?agent=writer&tab=logs")
    begun = page.locator(".log .line", has_text="begun")
    begun.first.wait_for()
    before = begun.count()

    with kernel.client() as client:
        client.stop("writer")
        page.locator(".panel .state", has_text="stopped").wait_for()
        client.start("writer")
    begun.nth(before).wait_for()


def test_a_lost_connection_is_made_again_and_the_log_followed_without_a_line_twice(open_page: Open) -> None:
    page = open_page("agents?agent=writer&tab=logs")
    page.locator(".log .line", has_text="begun").first.wait_for()
    before = page.locator(".log .line").all_inner_texts()

    page.evaluate("load('core/feed.js').then((feed) => { feed.call(1); })")  # no call: the server closes
    page.locator(".log .line", has_text="the kernel is not reachable").wait_for()
    page.locator(".log .line", has_text="the kernel is not reachable").wait_for(state="detached")
    until(lambda: page.locator(".log .line").all_inner_texts() == before, "the same lines are shown again")


def test_a_hidden_tab_says_what_waits_and_that_the_kernel_is_lost(open_page: Open, kernel: Kernel) -> None:
    page = open_page("agents", own=True)
    until(lambda: page.title() == "(1) Agents · agentos", "the call that waits is counted")
    page.evaluate(HIDE)

    with kernel.client() as client:
        [waiting] = client.approvals()["pending"][:1]
        client.decide(waiting["id"], False)
        until(lambda: page.title() == "Agents · agentos", "the answered call isn't counted any more")
    until(lambda: page.title() == "(1) Agents · agentos", "the next call is counted")
    page.evaluate("load('core/feed.js').then((feed) => { feed.connected.set(false); })")
    until(lambda: page.title() == "lost · Agents · agentos", "the title says that the kernel is lost")
    page.get_by_text("Kernel not reachable since").wait_for()


def test_a_restart_of_the_kernel_leaves_nothing_of_the_former_one_to_be_taken_for_the_present(
    open_page: Open, kernel: Kernel, context: Any
) -> None:
    logs = open_page("agents?agent=writer&tab=logs")
    begun = logs.locator(".log .line", has_text="begun")
    begun.first.wait_for()
    before = begun.count()
    several = open_page("logs?of=writer,kernel", height=400)
    of_all = several.locator(".log .line", has_text="begun")
    of_all.first.wait_for()
    kept = of_all.count()
    several.locator(".log").evaluate("(box) => { box.scrollTop = 100; }")
    several.get_by_role("button", name="follow", pressed=False).wait_for()
    place = several.evaluate(PLACE)
    chosen = open_page("logs?of=writer&grep=^beg").locator(".log .line > :last-child")
    chosen.first.wait_for()
    tree = open_page("tree")
    tree.get_by_title("memory, of 64M").first.wait_for()
    overview = open_page("overview")
    overview.locator(".attention li", has_text="coder").wait_for()

    kernel.kill()
    file = kernel.place / "agentos.toml"
    file.write_text(file.read_text().replace("64M", "96M"))
    kernel.start_again()

    begun.nth(before).wait_for()  # the lines of the former run stay above
    several.get_by_role("button", name=re.compile(r"^\d+ new$")).wait_for()
    assert several.evaluate(PLACE) == place
    several.get_by_role("button", name="follow").click()
    of_all.nth(kept).wait_for()
    several.locator(".log .line", has_text="ready; not up yet").nth(1).wait_for()
    assert of_all.count() == kept + 1
    chosen.nth(kept).wait_for()
    assert chosen.all_inner_texts() == ["begun"] * (kept + 1)
    tree.get_by_title("memory, of 96M").first.wait_for()
    with kernel.client() as client:
        until(lambda: [one["caller_present"] for one in client.approvals()["pending"]][:2] == [True, False], "both")
    overview.get_by_role("heading", name="Needs attention (1)").wait_for()
    overview.locator("#nav a", has_text="Approvals").locator(".count", has_text="1").wait_for()
    renew(context, kernel)


def test_what_cannot_be_allowed_any_more_comes_last_and_only_its_refusal_is_offered(
    open_page: Open, kernel: Kernel
) -> None:
    with kernel.client() as client:
        until(lambda: [one["caller_present"] for one in client.approvals()["pending"]][:1] == [True], "a call waits")
        asked = client.approvals()["pending"][0]["id"]
        client.restart("coder")
        until(lambda: client.approvals()["pending"][0]["id"] > asked, "its next life asks")
    page = open_page(f"approvals?id={asked}", own=True)
    item = page.get_by_label(f"approval {asked}", exact=True)

    item.get_by_text("its caller is gone").wait_for()
    assert page.locator(".queue li").last.inner_text().startswith("coder")
    assert "gone" in page.locator(".queue li").last.inner_text()
    assert "gone" not in page.locator(".queue li").first.inner_text()
    for name in ("allow once", "remember"):
        assert item.get_by_role("button", name=name).is_disabled()
    page.keyboard.press("r")
    page.keyboard.press("a")
    assert page.locator(".toast").count() == 0
    item.get_by_role("button", name="deny").click()
    deny = item.locator("form").get_by_role("button", name="deny")

    def denied() -> bool:
        if deny.is_visible():
            deny.click()  # it decides nothing within half a second of a change
        return not item.count()

    until(denied, "it was refused")


# The browser's own, which headless shows nowhere.
RECORD = """
  window.notified = [];
  window.Notification = class extends Notification {
    static permission = "granted";  // a browser without windows says "denied" also where it was granted
    constructor(title, options) {
      super(title, options);
      window.notified.push([title, options.body, this]);
    }
  };
"""


def test_approvals_and_failures_ring_after_a_click_while_the_tab_is_hidden(chromium: Any, kernel: Kernel) -> None:
    context = log_in(chromium, kernel)
    context.add_init_script(RECORD)

    def told(page: Any) -> list[str]:
        return [str(title) for title in page.evaluate("notified.map(([title]) => title)")]

    with pages(context, kernel) as show, kernel.client() as client:
        page = show("agents", own=True)
        bell = page.get_by_role("button", name="notifications")
        bell.click()
        page.get_by_text("doesn't allow notifications").wait_for()  # a browser that wasn't told to
        assert bell.get_attribute("aria-pressed") == "false"

        context.grant_permissions(["notifications"])
        bell.click()
        page.locator("[aria-label=notifications][aria-pressed=true]").wait_for()
        assert told(page) == ["agentos"]
        until(lambda: page.title().startswith("(1)"), "a call waits that was there before")
        page.evaluate(HIDE)
        [waiting] = client.approvals()["pending"][:1]
        client.decide(waiting["id"], False)
        until(lambda: told(page)[1:] == ["coder asks: EXEC"], "the next call is told of")
        os.kill(client.inspect("fragile")["pid"], signal.SIGKILL)
        until(lambda: told(page)[2:] == ["fragile failed"], "the failure is told of")
        client.start("fragile")
        page.evaluate("notified[1][2].onclick()")
        until(lambda: "#/approvals?id=" in page.url, "a click on it opens the approval")

        again = show("agents", own=True)
        again.locator("[aria-label=notifications][aria-pressed=true]").wait_for()
        again.get_by_role("button", name="notifications").click()
        again.locator("[aria-label=notifications][aria-pressed=false]").wait_for()
    context.close()
