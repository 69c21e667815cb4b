"""All agents of a recorded tree are forked at a question, from its page; forks that a command began are shown there."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import run_agentos
from tests.support.kernel import Kernel, environment, running, until
from tests.support.ports import free_port
from tests.system.agents import have_ended, up
from tests.web.chromium import Open, find_chromium, violations

from .conftest import TOML as DASHBOARD
from .conftest import begin_two_checked_forks
from .test_pages import sideways

AGENT = """
[[agents]]
name = "{name}"
script = "{code}/{name}.py"
code = "{code}"
restart = "temporary"
start = "on_message"
permissions = {permissions}
"""
# The helper has not begun when the question is asked, and the child waits for a message.
CHIEF = """
from agentos_sdk import AgentOSClient

with AgentOSClient() as me:
    me.recv_messages(1, timeout=300)
    child = me.spawn("child", script="/agent/helper.py")
    said = me.think("turn 7")["content"]
    for to in ({"to_name": "helper"}, {"to": child["id"]}):
        assert me.send_message(said, **to)["success"]
        me.recv_messages(1, timeout=300)
    me.wait("child", timeout=300)
"""
HELPER = """
from agentos_sdk import AgentOSClient

with AgentOSClient() as me:
    (one,) = me.recv_messages(1, timeout=300)["messages"]
    print("got", one["message"], flush=True)
    assert me.send_message("done", to=one["from_id"])["success"]
"""
RIGHTS = {"chief": '"unrestricted"', "helper": '{ level = "sandboxed", allow = { send = ["chief*"] } }'}
LIVES = ("chief/1", "child/1", "helper/1")


@pytest.fixture(scope="module")
def kernel(kernels: None, code: Path) -> Iterator[Kernel]:
    """One that has recorded three agents together."""
    for name, text in (("chief", CHIEF), ("helper", HELPER)):
        (code / f"{name}.py").write_text(text)
    agents = "".join(AGENT.format(name=name, code=code, permissions=rights) for name, rights in RIGHTS.items())
    with running(DASHBOARD.format(code=code, port=free_port()) + agents) as started:
        record = ["record", "chief", "helper", "--tree", "--socket", started.socket]
        assert run_agentos(record, started.place, environment(started.place)).returncode == 0
        with started.client() as client:
            up(client.send_message("begin", to_name="chief"))
            path = Path(started.state_dir) / "recordings" / "recording-1.recording"
            until(partial(have_ended, path, len(LIVES)), "three lives are recorded", show=lambda: started.said)
            up(client.record_stop())
        yield started


@pytest.fixture
def question(open_page: Open) -> Any:
    """The page of the chief's life with its question open, where the tree is chosen."""
    find_chromium()
    page = open_page("recordings?rec=recording-1&life=chief%2F1")
    page.locator(".waterfall").get_by_role("button", name="THINK").click()
    page.get_by_role("combobox", name="agents").select_option(label="all agents of the tree")
    return page


def test_a_tree_is_forked_after_the_rights_of_each_agent_were_shown(question: Any, kernel: Kernel) -> None:
    question.get_by_label("answer").fill("another answer")
    question.get_by_role("button", name="fork from here…").click()
    shown = question.get_by_role("alertdialog")
    for text in ("chief", "unrestricted", "helper", "chief*", "child"):
        shown.get_by_text(text, exact=True).first.wait_for()
    assert violations(question) == []
    shown.get_by_role("button", name="begin the fork").click()

    ended = question.get_by_role("status").filter(has_text="has ended; before the question: identical")
    ended.wait_for()
    members = ended.locator(".branches li").all()
    names = {life: name_of(one) for life in LIVES for one in members if f"in place of {life}," in one.inner_text()}
    assert len(names) == len(members) == len(LIVES)
    assert all("identical" in one.inner_text() for one in members)
    with kernel.client() as client:
        for life in ("helper/1", "child/1"):
            assert "got another answer" in [line["text"] for line in client.logs(names[life])["lines"]]
    assert violations(question) == []
    question.set_viewport_size({"width": 360, "height": 800})
    assert sideways(question) <= 0
    ended.get_by_role("link", name=names["helper/1"], exact=True).click()
    question.get_by_role("complementary", name=f"agent {names['helper/1']}").wait_for()


def name_of(member: Any) -> str:
    """The agent that is a member of a fork; each fork of a life has another number in its name."""
    return str(member.get_by_role("link").first.inner_text())


def test_forks_of_a_tree_are_checked_one_after_the_other_and_leave_no_jail(question: Any, kernel: Kernel) -> None:
    begin_two_checked_forks(question, "echo looked; exit 3")

    checked = question.get_by_role("status").filter(has_text="check: exit 3")
    checked.nth(1).wait_for()
    for one in (checked.nth(0), checked.nth(1)):
        assert one.locator(".branches li").count() == len(LIVES)
        assert "looked" in one.inner_text()
    with kernel.client() as client:
        until(lambda: not list_running_forks(client), "the jails have ended", show=lambda: list_running_forks(client))


def list_running_forks(client: Any) -> list[str]:
    return [one["name"] for one in client.list_agents() if "-fork" in one["name"] and one["state"] == "running"]


def test_the_members_of_a_fork_that_a_command_began_are_branches_of_the_recording(
    kernel: Kernel, open_page: Open
) -> None:
    find_chromium()
    env = {**environment(kernel.place), "AGENTOS_STATE_DIR": str(kernel.state_dir)}
    words = ["fork", "recording-1@1", "--tree", "--say", "go on", "--yes", "--socket", kernel.socket]
    done = run_agentos(words, kernel.place, env)
    rows = [line.split() for line in done.stdout.splitlines() if "-fork" in line.split(" ")[0]]
    assert len(rows) == len(LIVES), done.stdout + done.stderr

    page = open_page("recordings?rec=recording-1")
    for name, *_, recording in rows:
        branch = page.locator(".branches li").filter(has=page.get_by_role("link", name=recording, exact=True))
        branch.get_by_role("link", name=name, exact=True).wait_for()
        branch.get_by_text("exit status 0").wait_for()
    assert violations(page) == []
