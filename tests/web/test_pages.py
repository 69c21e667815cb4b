"""The dashboard's pages in a real browser."""

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.kernel import Kernel, shared, until
from tests.support.ports import free_port
from tests.system.agents import info
from tests.web.chromium import Open, find_chromium, renew, violations

PAGES = ("overview", "agents", "tree", "trace", "recordings", "model", "approvals", "events", "logs", "audit", "system")
HOSTILE = "<img src=x onerror=alert(1)>"
CONFIGURATION = """[dashboard]
listen = "127.0.0.1:PORT"
[permissions.asker.ask]
commands = ["touch *"]
[[supervisor.children]]
name = "steady"
command = ["sleep", "1000"]
permissions = "asker"
[[supervisor.children]]
name = "hopeless"
command = ["false"]
max_restarts = 0
on_give_up = "fail"
[[supervisor.children]]
name = "crasher"
command = ["sh", "-c", "echo '<b>bold</b> \\u001b[31mred' >&2; exit 3"]
max_restarts = "unlimited"
[[supervisor.children]]
type = "supervisor"
name = "pair"
strategy = "one_for_all"
[[supervisor.children.children]]
name = "one"
command = ["sleep", "1000"]
[[supervisor.children.children]]
name = "two"
command = ["sleep", "1000"]
"""
WIDTH_IN_NEXT_FRAME = """() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(
  () => done(document.documentElement.scrollWidth))))"""


LAST_ESCALATION = """() => load("core/feed.js").then(
  (feed) => Math.max(0, ...feed.events.peek().filter((one) => one.type === "AGENT_ESCALATED").map((one) => one.at)))"""


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def kernel(kernels: None, port: int) -> Iterator[Kernel]:
    find_chromium()
    with shared(CONFIGURATION.replace("PORT", str(port))) as started:
        yield started


def go(page: Any, name: str) -> None:
    """Show another page in the tab, with all that it asks the kernel for."""
    page.goto(page.url.partition("#")[0] + f"#/{name}")
    page.locator(f"[aria-current=page][href='#/{name.partition('?')[0]}']").wait_for(state="attached")
    page.evaluate(WIDTH_IN_NEXT_FRAME)  # the panel is drawn in it
    page.locator("#main > :not(h1)").first.wait_for()
    until(lambda: page.locator("[aria-busy=true]").count() == 0, "all replies are shown")


# What a finger is to hit and is less than 44 px high or wide; links in a sentence are as high as its line.
SMALL = """() => [...document.querySelectorAll(
  "button, a[href], input, select, textarea, summary, [role=tab], [role=treeitem]"
)].map((one) => one.type === "checkbox" ? one.closest("label") ?? one : one)
  .filter((one) => one.checkVisibility() && !one.matches("p a"))
  .map((one) => [one.outerHTML.slice(0, 80), one.getBoundingClientRect()])
  .filter(([, { width, height }]) => Math.round(height) < 44 || Math.round(width) < 44)
  .map(([text, { width, height }]) => `${text} ${width} x ${height}`)"""


@pytest.fixture
def touched(open_page: Open) -> Iterator[Any]:
    """A narrow page that a finger touches."""
    page = open_page("overview", 360, own=True)
    session = page.context.new_cdp_session(page)
    session.send("Emulation.setTouchEmulationEnabled", {"enabled": True})
    assert page.evaluate("matchMedia('(pointer: coarse)').matches")
    yield page
    session.send("Emulation.setTouchEmulationEnabled", {"enabled": False})


def test_each_page_is_accessible_and_scrolls_not_sideways_nor_is_the_button_under_the_pointer_hard_to_read(
    open_page: Open,
) -> None:
    page = open_page()
    for name in (*PAGES, "agents?agent=steady"):
        go(page, name)
        assert violations(page) == [], name
        assert page.evaluate(WIDTH_IN_NEXT_FRAME) <= 1280, name
    go(page, "agents?agent=steady&tab=exec")
    page.get_by_role("button", name="run", exact=True).hover()
    assert violations(page) == []


def test_on_a_narrow_page_what_a_finger_is_to_hit_has_44_pixels_and_nothing_scrolls_sideways(touched: Any) -> None:
    panel = [f"agents?agent=steady&tab={tab}" for tab in ("now", "logs", "limits", "rights", "exec", "send")]
    for name in (*PAGES, "more", "events?from=0", "trace?of=crasher", *panel):
        go(touched, name)
        assert touched.evaluate(SMALL) == [], name
        assert touched.evaluate(WIDTH_IN_NEXT_FRAME) <= 360, name
    touched.keyboard.press("Control+k")
    touched.get_by_role("combobox").wait_for()
    assert touched.evaluate(SMALL) == []
    touched.keyboard.press("Escape")


def test_a_narrow_page_takes_clicks(open_page: Open) -> None:
    page = open_page("overview", 390)

    page.get_by_role("link", name="Agents").click()
    page.get_by_role("row", name="steady").click()
    page.locator(".panel h2", has_text="steady").wait_for()
    page.locator(".panel").get_by_role("button", name="close").click()
    page.locator(".panel").wait_for(state="detached")
    page.get_by_role("link", name="More").click()
    page.get_by_role("link", name="System").click()
    page.get_by_role("button", name="show what a reload changes").wait_for()


def test_what_needs_attention_is_named_with_its_reason(open_page: Open) -> None:
    page = open_page("overview")

    item = page.locator(".attention li", has_text="crasher")
    item.wait_for()
    item.get_by_text("exit status 3").wait_for()


def test_an_action_is_asked_about_and_shown_when_it_is_done(open_page: Open, kernel: Kernel) -> None:
    page = open_page("agents?agent=steady")

    page.get_by_role("button", name="pause", exact=True).click()
    question = page.get_by_role("alertdialog")
    assert "steady" in question.inner_text()
    question.get_by_role("button", name="pause").click()
    page.locator(".panel .state", has_text="paused").wait_for()
    with kernel.client() as client:
        assert client.inspect("steady")["state"] == "paused"
    question.wait_for(state="detached")
    page.keyboard.press("p")
    page.get_by_role("alertdialog").get_by_role("button", name="resume").click()
    page.locator(".panel .state", has_text="running").wait_for()


def test_several_agents_are_acted_on_after_one_question(open_page: Open) -> None:
    page = open_page("agents?filter=supervisor:pair", own=True)

    page.get_by_label("select all").check()
    page.get_by_role("group").get_by_role("button", name="restart").click()
    question = page.get_by_role("alertdialog")
    assert {"one", "two"} <= set(question.inner_text().split())
    question.get_by_role("button", name="cancel").click()
    question.wait_for(state="detached")  # in the next frame


def test_text_of_agents_stays_text(open_page: Open, kernel: Kernel) -> None:
    page = open_page("agents?agent=crasher&tab=logs")

    page.locator(".log", has_text="<b>bold</b> red").wait_for()
    assert page.locator(".log b").count() == 0
    with kernel.connect() as wire:
        from tests.support.wire import EMIT

        wire.call(EMIT, {"event_type": "CUSTOM", "data": {"text": HOSTILE + "\N{RIGHT-TO-LEFT OVERRIDE}evil"}})
    page = open_page("events")
    page.locator(
        "#main",
        has_text=HOSTILE
        + "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}U+202E\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}evil",
    ).wait_for()
    assert page.locator("#main img").count() == 0


def test_the_filter_is_in_the_url_and_back_works(open_page: Open) -> None:
    page = open_page("agents")

    page.keyboard.press("/")
    page.keyboard.type("state:running one")
    page.get_by_text(re.compile(r"^1 of \d agents")).wait_for()
    assert "filter=state" in page.url
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.get_by_role("tree").wait_for()
    page.go_back()
    page.get_by_text(re.compile(r"^1 of \d agents")).wait_for()


def test_rows_of_the_table_are_reached_opened_marked_and_left_by_keys(open_page: Open) -> None:
    page = open_page("agents?sort=name", own=True)

    page.keyboard.press("j")
    page.locator('tr[aria-selected="true"]', has_text="crasher").wait_for()
    page.keyboard.press("j")
    page.locator('tr[aria-selected="true"]', has_text="hopeless").wait_for()
    page.keyboard.press("j")
    page.locator(".panel h2", has_text="one").wait_for()
    page.keyboard.press("x")
    page.get_by_text("1 agent marked").wait_for()
    until(lambda: page.evaluate("document.activeElement.matches(':focus-visible')"), "the rows have the focus")
    page.keyboard.press("Shift+R")
    page.get_by_role("alertdialog").wait_for()
    until(lambda: page.evaluate("document.activeElement.closest('.confirm') !== null"), "the question has the focus")
    page.keyboard.press("Escape")
    page.get_by_role("alertdialog").wait_for(state="detached")
    until(lambda: page.evaluate("document.activeElement.role === 'grid'"), "the rows have the focus again")
    page.keyboard.press("Escape")
    page.locator(".panel").wait_for(state="detached")


def test_the_tree_is_walked_closed_and_opened_by_keys(open_page: Open) -> None:
    page = open_page("tree")
    page.get_by_role("treeitem", name="pair").wait_for()

    page.get_by_role("tree").focus()
    page.keyboard.press("End")
    page.locator(".node.current", has_text="two").wait_for()
    page.keyboard.press("ArrowLeft")
    page.locator(".node.current", has_text="pair").wait_for()
    page.keyboard.press("ArrowLeft")
    page.get_by_role("treeitem", name="two").wait_for(state="detached")
    page.keyboard.press("ArrowRight")
    page.get_by_role("treeitem", name="two").wait_for()
    page.keyboard.press("ArrowRight")
    page.locator(".node.current").filter(has=page.get_by_text("one", exact=True)).wait_for()  # not one_for_one
    page.keyboard.press("Enter")
    page.locator(".panel h2", has_text="one").wait_for()


def test_the_columns_of_the_tree_have_headings_above_them(open_page: Open) -> None:
    page = open_page("tree", width=1440)
    row = page.get_by_role("treeitem", name="crasher")
    row.wait_for()

    heads = page.locator(".heads > span")
    assert heads.all_inner_texts() == ["name", "state", "for", "cpu", "memory", "restarts", "last end"]
    for number, head in enumerate(heads.all()[1:], 1):
        above, below = head.bounding_box(), row.locator("> span").nth(number).bounding_box()
        assert above is not None
        assert below is not None
        assert (above["x"], above["width"]) == (below["x"], below["width"]), number


def test_a_supervisor_that_gave_up_has_a_chip_until_it_was_looked_at(open_page: Open, kernel: Kernel) -> None:
    page = open_page("tree")
    with kernel.client() as client:
        until(lambda: info(client, "hopeless")["state"] == "failed", "it has given up")
        now = time.time()
        client.start("hopeless")
    until(lambda: page.evaluate(LAST_ESCALATION) > now, "it has given up once more")

    row = page.get_by_role("treeitem", name="hopeless")
    row.get_by_text("escalated").wait_for()
    row.click()
    row.get_by_text("escalated").wait_for(state="detached")


def test_the_focus_returns_after_a_dialog(open_page: Open) -> None:
    page = open_page("agents")
    page.locator("#filter").focus()

    page.keyboard.press("Control+k")
    page.get_by_role("combobox").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")
    until(lambda: page.evaluate("document.activeElement.id") == "filter", "the filter has the focus again")


def test_a_refused_spawn_says_why_at_the_field_and_a_right_one_is_shown(open_page: Open, kernel: Kernel) -> None:
    page = open_page("agents")

    page.get_by_role("button", name="spawn").click()
    form = page.get_by_role("dialog")
    form.get_by_label("name", exact=False).first.fill("steady")
    form.get_by_label("command").fill("sh -c 'echo \"two words\"; exec sleep 100'")
    form.get_by_role("button", name="spawn").click()
    form.locator("label", has_text="name").first.get_by_text("'steady' is taken").wait_for()
    form.get_by_label("name", exact=False).first.fill("visitor")
    form.get_by_label("memory").fill("much")
    form.get_by_role("button", name="spawn").click()
    form.locator("label", has_text="memory").get_by_text("expected a size").wait_for()
    form.get_by_label("memory").fill("64M")
    form.get_by_label("permissions").fill("readonly")
    form.get_by_label("restart", exact=False).first.select_option("transient")
    form.get_by_label("budget of tokens").fill("900")
    form.get_by_role("button", name="spawn").click()
    page.locator(".panel h2", has_text="visitor").wait_for()
    with kernel.client() as client:
        visitor = client.inspect("visitor")
        assert (visitor["limits"]["memory"], visitor["spec"]["restart"]) == (64 << 20, "transient")
        assert [budget["most"] for budget in visitor["llm"]["budgets"] if budget["what"] == "tokens"][:1] == [900]
        assert client.get_permissions(visitor["id"])["permissions"]["level"] == "readonly"
        client.kill("visitor")


def test_a_message_is_sent_to_the_mailbox_of_an_agent(open_page: Open, kernel: Kernel) -> None:
    page = open_page("agents?agent=steady&tab=send")

    page.get_by_label("message to its mailbox").fill('{"hello": 1}')
    page.get_by_role("button", name="send").click()
    page.get_by_text("send: steady: in its mailbox").wait_for()
    with kernel.client() as client:
        until(lambda: client.metrics()["metrics"]["kernel"]["waiting"]["mailboxes"] == 1, "the message waits")


def test_rules_are_shown_as_lines_and_one_is_explained(open_page: Open) -> None:
    page = open_page("agents?agent=steady&tab=rights")

    page.get_by_role("row", name="ask commands touch").wait_for()
    page.get_by_label("call", exact=True).select_option("EXEC")
    page.get_by_label("about").fill("touch x")
    page.get_by_role("button", name="explain").click()
    page.locator(".panel [role=status]", has_text="ask").wait_for()
    page.get_by_text('ask = { commands = ["touch *"] }').wait_for()


def test_routine_events_are_hidden_and_counted(open_page: Open) -> None:
    page = open_page("events")

    page.locator(".event", has_text="AGENT_RESTARTING").first.wait_for()
    button = page.get_by_role("button", name="routine").filter(has_text="hidden")
    button.wait_for()
    assert page.locator(".event", has_text="AGENT_STATE").count() == 0
    button.click()
    page.locator(".event", has_text="AGENT_STATE").first.wait_for()


def emit(kernel: Kernel, kind: str, count: int) -> None:
    from tests.support.wire import EMIT

    with kernel.connect() as wire:
        for _ in range(count):
            wire.call(EMIT, {"event_type": kind, "data": {"text": "the same"}})


def test_equal_events_are_one_line_that_is_opened(open_page: Open, kernel: Kernel) -> None:
    page = open_page("events?filter=custom.tick")
    emit(kernel, "custom.tick", 37)

    many = page.locator(".event", has_text="the same").get_by_role("button", name="\N{MULTIPLICATION SIGN}37")
    many.wait_for()
    assert page.locator(".event").count() == 1
    many.click()
    until(lambda: page.locator(".opened .event").count() == 36, "the others are shown")
    page.get_by_role("button", name="collapse").click()
    until(lambda: page.locator(".event").count() == 37, "each has a line")
    crashes = open_page("events?filter=crasher+exit+status+3")
    several = re.compile("\N{MULTIPLICATION SIGN}[0-9]+")
    crashes.locator(".event", has_text="AGENT_EXITED").get_by_role("button", name=several).wait_for()


def test_events_are_of_a_chosen_time_which_may_begin_before_what_a_page_has(open_page: Open, kernel: Kernel) -> None:
    emit(kernel, "custom.early", 300)
    emit(kernel, "custom.late", 300)
    page = open_page("events?filter=custom.early", own=True)
    page.get_by_text("No event contains that").wait_for()

    page.get_by_label("time").select_option("all that is kept")
    page.get_by_role("button", name="\N{MULTIPLICATION SIGN}300").wait_for()
    page.get_by_label("to", exact=True).fill("2001-01-01T00:00:00")
    page.get_by_text("No event contains that in this time").wait_for()
    page.get_by_label("time").select_option("last hour")
    page.get_by_role("button", name="\N{MULTIPLICATION SIGN}300").wait_for()
    assert "from=" in page.url
    assert "to=" not in page.url


def test_only_rows_in_view_are_in_the_document(open_page: Open, kernel: Kernel) -> None:
    page = open_page("agents?sort=name", own=True)
    rows = [{"id": 1000 + n, "name": f"w-{n}", "state": "running", "supervisor": "root"} for n in range(5000)]

    page.evaluate(
        """async (rows) => {
          const { agents } = await load("core/feed.js");
          for (const row of rows) agents.peek().set(row.id, row);
          agents.touch();
        }""",
        rows,
    )
    page.get_by_text("5,00").wait_for()
    assert page.locator("os-table tbody tr").count() < 100
    page.locator("os-table table").focus()
    page.keyboard.press("End")
    page.locator('tr[aria-selected="true"]', has_text="w-4999").wait_for()


def test_a_page_says_that_the_kernel_is_lost_and_comes_back(open_page: Open, context: Any, kernel: Kernel) -> None:
    page = open_page("agents?agent=steady", own=True)
    page.get_by_role("button", name="stop", exact=True).click()
    question = page.get_by_role("alertdialog")
    page.get_by_role("button", name="spawn").click()
    form = page.get_by_role("dialog")
    form.get_by_label("name", exact=False).first.fill("patient")
    form.get_by_label("command").fill("sleep 1000")

    kernel.kill()
    page.get_by_text("Kernel not reachable since").wait_for()
    page.get_by_role("button", name="restart", exact=True, disabled=True).first.wait_for()
    question.get_by_role("button", name="stop", disabled=True).wait_for()
    form.get_by_role("button", name="spawn", disabled=True).wait_for()
    kernel.start_again()
    page.get_by_text("Kernel restarted").wait_for()
    page.locator(".panel .state", has_text="running").wait_for()
    question.get_by_role("button", name="stop", disabled=False).wait_for()
    form.get_by_role("button", name="spawn").click()
    page.locator(".panel h2", has_text="patient").wait_for()
    renew(context, kernel)
    for target, rows in (("trace?of=steady", ".waterfall .row"), ("agents?agent=steady&tab=calls", ".panel .entry")):
        go(page, target)  # the id of the agent is the one of the run before
        page.locator(rows, has_text="AGENT_READY").first.wait_for()
        assert page.locator(rows, has_text="AGENT_READY").count() == 1, target
