"""What a person finds out and does on the dashboard's pages, in a real browser against a real kernel."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentos.userland.cli.kernel.kernel import quote_ended
from tests.support.kernel import Kernel, shared, until
from tests.support.runs.enter import let_in
from tests.web.chromium import Open, find_chromium, log_in, pages

CODER = Path(__file__).parents[2] / "demos" / "dashboard" / "coder.py"
# Asks two questions at a time, of which one waits in the line, and then no more.
REVIEWER = """
import threading, time
from agentos_sdk import AgentOSClient

begin = threading.Barrier(2)

def review(part):
    with AgentOSClient() as kernel:
        for number in range(2):
            begin.wait()
            print(kernel.think(f"Review change {number} of {part}")["content"], flush=True)

for part in ("code", "tests"):
    threading.Thread(target=review, args=[part]).start()
time.sleep(1000)
"""
CONFIGURATION = f"""[dashboard]
listen = "127.0.0.1:0"
[llm]
provider = "offline"
offline = {{ base = "100ms" }}
[llm.prices]
offline = {{ input = 3, output = 15 }}
[permissions.worker]
level = "sandboxed"
ask = {{ commands = ["git push *"] }}
[[supervisor.children]]
name = "steady"
command = ["sleep", "1000"]
permissions = "worker"
[[supervisor.children]]
name = "hopeless"
command = ["sh", "-c", "echo 'column orders.total is missing' >&2; exit 2"]
max_restarts = 0
on_give_up = "fail"
[[supervisor.children]]
name = "unstable"
command = ["sh", "-c", "sleep 4; exit 1"]
max_restarts = "unlimited"
[[supervisor.children]]
name = "reviewer-1"
script = "REVIEWER"
[[supervisor.children]]
name = "reviewer-2"
script = "REVIEWER"
[[supervisor.children]]
name = "nightly"
command = ["true"]
start = "on_message"
schedule = {{ cron = "0 3 1 1 *" }}
[[supervisor.children]]
name = "coder"
script = "{CODER}"
permissions = "worker"
"""


@pytest.fixture(scope="module")
def kernel(kernels: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    find_chromium()
    script = tmp_path_factory.mktemp("agents") / "reviewer.py"
    let_in(script.parent, tmp_path_factory.getbasetemp())
    script.write_text(REVIEWER)
    with shared(CONFIGURATION.replace("REVIEWER", str(script))) as started:
        yield started
        with started.client() as client:
            client.kill("coder")  # it would ask again while the kernel is waited for to be idle


def test_a_failed_agent_is_quoted_and_its_time_is_known(open_page: Open, kernel: Kernel) -> None:
    item = open_page("overview").locator(".attention li", has_text="hopeless")

    item.get_by_text("column orders.total is missing").wait_for()
    item.get_by_text(re.compile(r"failed \d+(m \d+)?s")).wait_for()
    with kernel.client() as client:
        assert quote_ended(client, client.status()["attention"])["hopeless"] == "column orders.total is missing"


def test_an_agent_that_waits_says_for_what_and_how_long(open_page: Open) -> None:
    page = open_page("agents?agent=nightly")
    panel = page.locator("#panel")

    panel.get_by_text("cron 0 3 1 1 *, message").wait_for()
    panel.get_by_text(re.compile(r"^20\d\d-01-01 03:00:00$")).wait_for()
    panel.get_by_text(re.compile(r"^starts in \d+d")).wait_for()
    page.get_by_role("row", name="nightly").get_by_text(re.compile(r"^in \d+d")).wait_for()


def test_an_agent_in_the_tree_has_a_bar_of_its_memory(open_page: Open) -> None:
    row = open_page("tree").get_by_role("treeitem", name="reviewer-1")

    row.get_by_title(re.compile("memory, of [0-9]+M")).locator(".bar i").wait_for(state="attached")


def test_a_command_runs_beside_an_agent_and_its_output_is_shown(open_page: Open) -> None:
    page = open_page("agents?agent=steady&tab=exec")

    page.get_by_label("command").fill("echo '<i>out</i>'; echo err >&2; printf '\\033[31mred\\033[0m'; exit 4")
    page.keyboard.press("Enter")
    page.get_by_text("exit status 4").wait_for()
    output = page.get_by_label("output")
    assert "<i>out</i>" in output.inner_text()
    assert output.locator(".warn", has_text="err").count() == 1
    assert output.locator(".bad").inner_text() == "red"


def test_a_command_is_stopped(open_page: Open, kernel: Kernel) -> None:
    page = open_page("agents?agent=steady&tab=exec")

    page.get_by_label("command").fill("echo begun; sleep 987")
    page.keyboard.press("Enter")
    page.get_by_label("output").get_by_text("begun").wait_for()
    page.locator(".below").get_by_role("button", name="stop").click()
    page.locator(".below").get_by_text("stopped").wait_for()
    with kernel.client() as client:
        # The line, bash and sleep: all of them end with the call.
        until(lambda: client.inspect("steady")["usage"]["pids"] <= 1, "the command has ended")


def test_an_action_that_has_the_focus_says_its_line_of_the_command_line(open_page: Open) -> None:
    page = open_page("agents?agent=steady")
    page.get_by_role("button", name="restart", exact=True).wait_for()

    page.keyboard.press(".")
    page.locator("#status", has_text="agentos restart steady").wait_for()
    page.goto(page.url.partition("#")[0] + "#/overview")
    page.locator("#status", has_text="agentos restart steady").wait_for(state="detached")


def test_rules_are_changed_after_their_difference_was_shown(open_page: Open, kernel: Kernel) -> None:
    page = open_page("agents?agent=steady&tab=rights")

    page.get_by_role("button", name="change…").click()
    form = page.get_by_role("region", name="change the rules")
    form.get_by_label("pattern").fill("notes.md")
    form.get_by_role("button", name="add").click()
    form.get_by_text("+ allow read notes.md").wait_for()
    form.get_by_role("button", name="set the rules").click()
    form.get_by_role("alert").get_by_text("notes.md").wait_for()  # the kernel's own error
    form.get_by_role("button", name="remove allow read notes.md").click()
    form.get_by_role("button", name="remove ask commands git push *").click()
    form.get_by_label("pattern").fill("/data/**")
    form.get_by_role("button", name="add").click()
    form.get_by_text("- ask commands git push *").wait_for()
    page.get_by_text('allow = { read = ["/data/**"] }').wait_for()
    form.get_by_role("button", name="set the rules").click()
    page.get_by_role("row", name="allow read /data/**").wait_for()
    with kernel.client() as client:
        held = client.get_permissions(client.inspect("steady")["id"])["permissions"]
    assert held["allow"] == {"read": ["/data/**"]}
    assert "ask" not in held


def test_rules_that_another_operator_changed_meanwhile_arent_undone_unseen(open_page: Open, kernel: Kernel) -> None:
    page = open_page("agents?agent=reviewer-1&tab=rights")
    page.get_by_role("button", name="change…").click()
    form = page.get_by_role("region", name="change the rules")
    form.get_by_label("pattern").fill("/mine/**")
    form.get_by_role("button", name="add").click()
    form.get_by_text("+ allow read /mine/**").wait_for()
    with kernel.client() as client:
        agent = client.inspect("reviewer-1")["id"]
        client.set_permissions({"level": "sandboxed", "allow": {"read": ["/others/**"]}}, agent_id=agent)

        form.get_by_role("button", name="set the rules").click()
        form.get_by_role("alert").get_by_text("changed elsewhere meanwhile").wait_for()
        assert client.get_permissions(agent)["permissions"]["allow"] == {"read": ["/others/**"]}
        form.get_by_text("- allow read /others/**").wait_for()
        form.get_by_role("button", name="set the rules").click()
        page.get_by_role("row", name="allow read /mine/**").wait_for()
        assert client.get_permissions(agent)["permissions"]["allow"] == {"read": ["/mine/**"]}


def test_messages_after_one_that_could_not_be_shown_are_received(open_page: Open) -> None:
    reported = open_page(own=True).evaluate("""async () => {
      const { call, stream } = await load("core/feed.js");
      const reported = new Promise((resolve) => addEventListener("error", (event) => {
        event.preventDefault();
        resolve(event.message);
      }));
      stream("LOGS", { tail: 1, follow: true }, () => { throw new Error("not shown"); }, () => {});
      const message = await reported;
      await call("NOOP");
      return message;
    }""")
    assert "not shown" in reported


def test_what_an_agent_changed_is_looked_at_applied_undone_and_thrown_away(open_page: Open, kernel: Kernel) -> None:
    project = kernel.place / "project"
    project.mkdir()
    before = {"README": "A sum.\n", "both": "old\n"}
    for file, text in before.items():
        (project / file).write_text(text)

    def files() -> dict[str, str]:
        return {str(path.relative_to(project)): path.read_text() for path in project.rglob("*") if path.is_file()}

    with kernel.client() as client:
        client.spawn("writer", command=["sleep", "1000"], workspace=str(project), workspace_mode="overlay")
        client.exec(
            "echo '<img src=x onerror=alert(1)>' >> README; echo mine > both; mkdir .vscode; echo {} > .vscode/a.json",
            name="writer",
        )
        (project / "both").write_text("the host's\n")
        page = open_page("agents?agent=writer&tab=changes")
        page.get_by_text("+<img src=x").wait_for()
        assert page.locator("#panel img").count() == 0
        page.get_by_role("heading", name="The host has changed these, too").wait_for()
        page.get_by_role("heading", name="Obeyed by programs outside of the jail").wait_for()

        client.exec("echo later >> README", name="writer")
        page.get_by_role("button", name="apply 1 change…").click()
        page.get_by_role("alertdialog").get_by_role("button", name="apply").click()
        page.get_by_text("Nothing was applied").wait_for()
        assert page.get_by_role("listitem").filter(has_text="README is another change now").count() == 1
        assert files() == before | {"both": "the host's\n"}

        page.get_by_text("+later").wait_for()
        page.get_by_label("apply .vscode, too").check()
        page.get_by_label("way out for both").select_option("ours")
        page.get_by_role("button", name="apply 4 changes…").click()
        page.get_by_role("alertdialog").get_by_text("Programs of the host will obey .vscode.").wait_for()
        page.get_by_role("alertdialog").get_by_role("button", name="apply").click()
        page.get_by_text("4 paths applied").wait_for()
        readme = "A sum.\n<img src=x onerror=alert(1)>\nlater\n"
        assert files() == {"README": readme, "both": "mine\n", ".vscode/a.json": "{}\n"}

        page.get_by_text("No changes").wait_for()
        page.get_by_role("button", name="undo the last apply…").click()
        page.get_by_role("alertdialog").get_by_role("button", name="undo").click()
        page.get_by_text("4 paths undone").wait_for()
        assert files() == before | {"both": "the host's\n"}
        page.get_by_text("+later").wait_for()
        page.get_by_role("button", name="roll back…").click()
        page.get_by_role("alertdialog").get_by_role("button", name="roll back").click()
        page.get_by_text("No changes").wait_for()
        assert client.diff("writer")["changes"] == []


def test_the_host_is_examined_and_the_audit_log_verified_in_child_processes(open_page: Open, kernel: Kernel) -> None:
    page = open_page("system")

    page.get_by_role("button", name="verify all of it").click()
    page.get_by_text(re.compile("^sound: ")).wait_for()
    page.get_by_role("button", name="examine this host").click()
    page.get_by_text("facts about the host").wait_for()
    page.get_by_text("facts about the host").click()
    page.locator("dd", has_text="Linux").wait_for()
    with kernel.client() as client:
        made = client.get_audit_log(category="commands", limit=100)["entries"]
    callers = {one["name"].split(":")[0] for one in made if "doctor" in one["about"] or "verify" in one["about"]}
    assert callers == {"web"}


def test_what_a_reload_changes_is_shown_before(open_page: Open, kernel: Kernel) -> None:
    file = kernel.place / "agentos.toml"
    text = file.read_text()
    page = open_page("system")
    try:
        file.write_text(text + '[[supervisor.children]]\nname = "late"\ncommand = ["sleep", "1000"]\n')

        page.get_by_role("button", name="show what a reload changes").click()
        page.locator(".diff .add", has_text="+ late added").wait_for()
        page.get_by_text("the file as it is now").click()
        page.locator("pre.copied", has_text='name = "late"').wait_for()
        page.get_by_role("button", name="reload", exact=True).click()
        page.get_by_text("reloaded").wait_for()
        with kernel.client() as client:
            assert client.inspect("late")["name"] == "late"
    finally:
        file.write_text(text)
        with kernel.client() as client:
            client.reload()


def test_the_model_page_begins_with_what_agents_spend_and_sorts_it(open_page: Open) -> None:
    page = open_page("model", width=1440)

    table = page.get_by_role("group", name="agents by cost")
    rows = table.locator("tbody tr")
    row = rows.filter(has_text="reviewer-1")
    row.get_by_text(re.compile(r"0 of \d+")).wait_for()
    assert re.fullmatch(r"0\.\d{4}", row.locator("td").nth(1).inner_text())
    assert "%" in row.inner_text()  # of the default budget
    page.get_by_role("button", name="since yesterday", pressed=False).click()
    page.get_by_role("button", name="since yesterday", pressed=True).wait_for()
    look, shown = row.get_by_role("link", name="events").bounding_box(), table.bounding_box()
    assert look is not None
    assert shown is not None
    assert look["x"] + look["width"] <= shown["x"] + shown["width"], "the way to why it failed is in view"
    assert "range=604800" in str(row.get_by_role("link", name="logs").get_attribute("href"))
    model = page.get_by_role("group", name="models").locator("tbody tr", has_text="offline")
    assert "ok" in model.inner_text()
    table.get_by_role("button", name="agent").click()
    page.locator("th[aria-sort=descending]", has_text="agent").wait_for()
    names = rows.locator("td:first-child").all_inner_texts()
    assert names == sorted(names, reverse=True)
    table.get_by_role("button", name="agent").click()
    page.locator("th[aria-sort=ascending]", has_text="agent").wait_for()
    row.get_by_role("link", name="reviewer-1").click()
    page.locator(".panel h2", has_text="reviewer-1").wait_for()


def test_agents_that_need_attention_are_first_until_one_sorts_them(open_page: Open) -> None:
    page = open_page("agents")

    page.locator("th[aria-sort=ascending]", has_text="State").wait_for()
    page.locator("tbody tr[aria-rowindex='2']", has_text="hopeless").wait_for()
    page.get_by_role("button", name="Name").click()
    page.locator("tbody tr[aria-rowindex='2']", has_text="coder").wait_for()


def test_bars_of_a_trace_split_waiting_from_the_model_and_have_most_of_its_width_and_a_time_axis(
    open_page: Open,
) -> None:
    page = open_page("trace?of=reviewer-1", width=1440)
    page.get_by_text("waiting in the line").wait_for()
    page.locator(".track i.waiting + i.model").first.wait_for()
    assert "cost null" not in page.locator(".waterfall .row", has=page.locator("i.model")).first.inner_text()

    row = page.locator(".waterfall .row:not(.axis)").first.bounding_box()
    track = page.locator(".waterfall .row:not(.axis) .track").first.bounding_box()
    assert row is not None
    assert track is not None
    assert track["width"] > 0.6 * row["width"]
    marks = page.locator(".axis .track > span")
    assert marks.count() >= 3
    assert marks.first.inner_text() == "0"
    lefts = [float(one.evaluate("(mark) => mark.getBoundingClientRect().left")) for one in marks.all()]
    assert lefts[0] == pytest.approx(track["x"], abs=1)
    assert lefts == sorted(lefts)
    assert lefts[-1] <= track["x"] + track["width"]
    assert marks.evaluate_all("(marks) => marks.every((mark) => mark.scrollWidth <= mark.clientWidth + 1)")

    zoom = page.get_by_role("group", name="zoom")
    y = track["y"] + track["height"] / 2
    page.mouse.move(track["x"] + track["width"] / 2, y)
    page.mouse.down()
    page.mouse.move(track["x"] + track["width"] * 3 / 4, y)
    page.mouse.up()
    zoom.get_by_text(re.compile(" of ")).wait_for()
    zoom.get_by_role("button", name="zoom in").click()
    zoom.get_by_role("button", name="all of it").click()
    zoom.get_by_text("drag along the bars").wait_for()
    answered = page.locator(".waterfall .row", has=page.locator("i.model")).last  # the texts of the first aren't kept
    answered.get_by_role("button").click()
    beside = page.get_by_role("complementary", name=re.compile(r"^call \d+$"))
    beside.get_by_role("heading", name="answer").wait_for()


def test_a_question_to_a_person_is_no_failure_in_a_trace(open_page: Open) -> None:
    page = open_page("trace?of=coder")

    page.locator(".waterfall .row", has_text="APPROVAL_REQUESTED").locator("i.life").wait_for(state="attached")


def test_restarts_are_counted_below_the_charts_of_the_window_that_is_said(open_page: Open) -> None:
    page = open_page("agents?agent=unstable")

    page.get_by_text(re.compile("[0-9]+ restarts? in this time")).wait_for()
    page.get_by_role("heading", name=re.compile(r"^Last 15 min, known for \d")).wait_for()


def test_an_agent_that_has_ended_shows_no_present_memory(open_page: Open) -> None:
    page = open_page("agents?agent=hopeless")

    row = page.get_by_role("row", name="hopeless")
    row.wait_for()
    assert row.locator("td.number").all_inner_texts()[2] == "\N{EN DASH}"
    page.locator("dt", has_text="restarts").wait_for()
    assert page.locator("dt").filter(has_text=re.compile("^(memory|cpu|processes)$")).count() == 0


@pytest.fixture(scope="module")
def viewer(chromium: Any, kernel: Kernel) -> Iterator[Any]:
    """A browser that has logged in by a viewer's link."""
    made = log_in(chromium, kernel, "viewer")
    yield made
    made.close()


def test_a_viewer_is_told_why_it_may_not(viewer: Any, kernel: Kernel) -> None:
    with pages(viewer, kernel, keep=True) as show:
        page = show("agents?agent=steady")
        button = page.get_by_role("button", name="stop")
        button.wait_for()
        assert button.is_disabled()
        assert "link of a viewer" in str(button.get_attribute("title"))
        assert page.evaluate("load('core/feed.js').then((feed) => Object.keys(feed.commands.peek()))") == []


def test_a_viewer_sees_why_an_agent_failed_and_no_page_says_what_isnt_true(viewer: Any, kernel: Kernel) -> None:
    with pages(viewer, kernel, keep=True) as show:
        page = show("overview")
        page.locator("#top .chip", has_text="viewer").wait_for()
        page.locator(".attention li", has_text="hopeless").get_by_text("exit status 2").first.wait_for()
        for name in ("trace", "audit"):
            assert page.get_by_role("link", name=name).count() == 0, name
        for name in ("tree", "model", "approvals", "events", "logs", "system"):
            page.goto(page.url.partition("#")[0] + f"#/{name}")
            page.locator("#main > :not(h1)").first.wait_for()
            for untrue in ("no configuration", "without a file", "No link"):
                assert untrue not in page.locator("body").inner_text(), name
        page.goto(page.url.partition("#")[0] + "#/agents?agent=steady")
        page.get_by_role("tab", name="limits").wait_for()
        tabs = page.get_by_role("tab").all_inner_texts()
        assert tabs == ["now", "logs", "recordings", "limits"]  # nor an overlay's changes


def test_an_approver_decides_what_waits_and_remembers_nothing_until_another_browser_revokes_its_session(
    chromium: Any, kernel: Kernel, open_page: Open
) -> None:
    with pages(log_in(chromium, kernel, "approver"), kernel) as show:
        lost = show("approvals")
        allow = lost.get_by_role("button", name="allow once")
        allow.wait_for()
        assert allow.is_enabled()
        assert lost.get_by_role("button", name="deny").is_enabled()
        assert lost.get_by_role("button", name="remember").is_disabled()

        page = open_page("system", own=True)
        page.get_by_role("row", name="this one").wait_for()
        page.locator("tr:not(:has-text('this one'))", has_text="approver").first.get_by_text("revoke").click()
        lost.get_by_text("This browser is logged out").wait_for()
