"""Links for others than the operator: what a viewer and an approver see and do, and what ends a link."""

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from agentos.permissions.link_sets import LINK_SETS
from agentos.userland.web.links import Role
from agentos.userland.web.page import NOT_FOR_PAGES
from agentos_sdk.opcodes import Op
from tests.support.askers import Asker, list_pending
from tests.support.commands import run_agentos
from tests.support.kernel import Kernel, environment, shared
from tests.support.wire import EXEC, HELLO
from tests.web.conftest import Browser, Tab, browser_of, key_of, link_of

ROLES: tuple[Role, ...] = ("viewer", "viewer-with-contents", "approver")
CONFIGURATION = """[dashboard]
listen = "127.0.0.1:0"
[llm]
provider = "offline"
[[agents]]
name = "hopeless"
command = ["sh", "-c", "echo out of luck >&2; exit 7"]
restart = "temporary"
[[agents]]
name = "steady"
command = ["sleep", "1000"]
"""


@pytest.fixture(scope="module")
def kernel(kernels: None) -> Iterator[Kernel]:
    with shared(CONFIGURATION) as started:
        yield started


@pytest.fixture
def asker(kernel: Kernel) -> Iterator[Asker]:
    asker = Asker(kernel, "asker", {"commands": ["touch *"]})
    yield asker
    asker.close()
    with kernel.client() as client:
        for one in list_pending(kernel):
            client.decide(one["id"], False)
        client.kill("asker", grace=0)


@pytest.fixture
def run(kernel: Kernel) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``agentos dashboard`` of this kernel."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        whole = ["dashboard", *arguments, "--state-dir", str(kernel.state_dir)]
        return run_agentos(whole, kernel.place, environment(kernel.place))

    return run


def row_of(tab: Tab, name: str) -> dict[str, Any]:
    [row] = [row for row in tab.shown["agents"].values() if row["name"] == name]
    return dict(row)


@pytest.mark.parametrize("role", ROLES)
def test_states_reasons_events_logs_figures_and_approvals_are_shown(kernel: Kernel, asker: Asker, role: Role) -> None:
    asker.begin(EXEC, {"command": "touch plan"})
    with browser_of(kernel, role).open_page() as tab:
        tab.wait(lambda shown: shown["role"] == role and tab.state_of("hopeless") in ("exited", "failed"))
        tab.wait(lambda shown: any("touch plan" in one["shown"] for one in shown["approvals"]))
        assert "exit status 7" in row_of(tab, "hopeless")["end"]
        with kernel.client() as client:  # its first end may be further back than the last events
            assert client.start("hopeless")["success"]
        tab.wait(lambda shown: any("exit status 7" in str(event["data"]) for event in shown["events"]))
        assert "out of luck" in [line["text"] for line in tab.call("LOGS", name="hopeless")["lines"]]
        assert "config" not in tab.shown["kernel"] or tab.shown["kernel"]["config"] is None
        assert tab.call("INSPECT", name="steady")["state"] == "running"
        for call in ("TREE", "USAGE", "METRICS_SYSTEM", "METRICS_ALL_AGENTS", "STATUS"):
            assert tab.call(call)["success"] is True, call


@pytest.mark.parametrize("role", ROLES)
def test_all_other_calls_are_refused(kernel: Kernel, role: Role) -> None:
    """Whatever they are about: the call itself is refused."""
    granted = {rule.text for rule in LINK_SETS[role].rules if rule.kind in ("calls", "read")}
    allowed = granted | ({"READ"} if role == "viewer-with-contents" else set())
    with browser_of(kernel, role).open_page() as tab:
        replies = {op.name: tab.call(op.name) for op in Op if op not in NOT_FOR_PAGES}
        codes = {name: reply.get("code") if isinstance(reply, dict) else None for name, reply in replies.items()}
        refused = {name for name, code in codes.items() if code == "permission_denied"}
        assert refused == {name for name, code in codes.items() if code != "unknown_call"} - allowed
        assert {"KILL", "EXEC", "WRITE", "SET_PERMS", "SEND", "STORE", "SHUTDOWN"} <= refused
        for page, args in (("LOGS", {"name": "kernel"}), ("USAGE", {"name": "steady", "reset": True})):
            assert tab.call(page, **args)["success"] is False


def test_questions_audit_log_and_files_need_contents(kernel: Kernel) -> None:
    (kernel.place / "notes.txt").write_text("in the project")
    (kernel.place / ".env").write_text("TOKEN=secret")
    wanted: tuple[tuple[str, dict[str, str]], ...] = (
        ("GET_CONTENTS", {}),
        ("GET_AUDIT_LOG", {}),
        ("READ", {"path": str(kernel.place / "notes.txt")}),
    )
    with browser_of(kernel, "viewer-with-contents").open_page() as tab:
        for call, args in wanted:
            assert tab.call(call, **args)["success"] is True, call
        for path in (kernel.place / ".env", kernel.state_dir / "dashboard" / "sessions.json", "/etc/hostname"):
            assert tab.call("READ", path=str(path))["code"] == "permission_denied", path
    for role in ("viewer", "approver"):
        with browser_of(kernel, role).open_page() as tab:
            for call, args in wanted:
                assert tab.call(call, **args)["code"] == "permission_denied", (role, call)


def test_an_approver_decides_once_and_the_audit_log_names_its_link(kernel: Kernel, asker: Asker) -> None:
    wire = asker.begin(EXEC, {"command": "touch plan"})
    browser = browser_of(kernel, "approver")
    with browser.open_page() as tab, kernel.client() as client:
        tab.wait(lambda shown: shown["approvals"])
        [entry] = tab.shown["approvals"]
        decision = {"id": entry["id"], "allow": True, "digest": entry["digest"]}
        for more in ({"remember": "agent"}, {"remember": "always"}, {"via": "operator"}):
            assert tab.call("DECIDE", **decision, **more)["code"] == "permission_denied", more
        assert tab.call("DECIDE", id=1, allow=False, forget=True)["code"] == "permission_denied"
        assert tab.call("DECIDE", **decision)["success"] is True
        assert wire.receive().json["exit_code"] == 0

        name = f"web:approver:{browser.keys['run']['id']}"
        tab.wait(lambda shown: any(
            event["type"] == "APPROVAL_DECIDED" and event["data"]["by"] == name for event in shown["events"]
        ))  # fmt: skip
        decided = [one for one in client.get_audit_log(limit=200)["entries"] if one["call"] == "APPROVAL_DECIDED"]
        assert (decided[-1]["name"], decided[-1]["kind"]) == (name, "guest")
        assert decided[-1]["rule"] == "allow calls DECIDE (an approver's link)"
        assert f"by {name}, uid" in decided[-1]["about"]


def test_a_viewer_decides_nothing(kernel: Kernel, asker: Asker) -> None:
    asker.begin(EXEC, {"command": "touch plan"})
    for role in ("viewer", "viewer-with-contents"):
        with browser_of(kernel, role).open_page() as tab:
            tab.wait(lambda shown: shown["approvals"])
            [entry] = tab.shown["approvals"]
            assert tab.call("DECIDE", id=entry["id"], allow=True)["code"] == "permission_denied"
            assert len(tab.call("APPROVALS")["pending"]) == 1


def test_no_other_caller_gets_what_a_link_has(kernel: Kernel) -> None:
    for name in LINK_SETS:
        with kernel.connect() as wire:
            refused = wire.call(HELLO, {"level": name})
            assert refused["code"] == "bad_request"
            assert "no level or permission set" in refused["error"]
        with kernel.client() as client:
            assert client.set_permissions(name, agent_id=client.inspect("steady")["id"])["code"] == "bad_request"


def test_links_are_listed_and_one_that_is_revoked_ends_at_once(kernel: Kernel, run: Any) -> None:
    unused, used = link_of(kernel, "approver"), run("--viewer", "--for", "90m").stdout.strip()
    browser = Browser(urlsplit(used).netloc)
    browser.log_in(used)
    with browser.open_page() as tab:
        tab.wait(lambda shown: shown["role"] == "viewer")
        listed = {one["id"]: one for one in json.loads(run("--links", "--json").stdout)["links"]}
        first, second = (key_of(link)["id"] for link in (unused, used))
        assert (listed[first]["role"], listed[first]["used"]) == ("approver", None)
        assert listed[second]["until"] - listed[second]["started"] == pytest.approx(5400, abs=120)
        shown = run("--links").stdout
        assert first in shown
        assert second in shown

        assert run("--revoke", second).stdout == f"revoked {second}\n"
        assert tab.wait_closed() == 4401
    for use in ("run", "tab"):
        with browser.open_page(use=use) as tab:
            assert tab.wait_closed() == 4401
    assert run("--revoke", first).returncode == 0
    with Browser(urlsplit(unused).netloc, {"link": key_of(unused)}).open_page(use="link") as tab:
        assert tab.wait_closed() == 4401
    refused = run("--revoke", first)
    assert refused.returncode == 1
    assert f"no link has the id '{first}'" in refused.stderr


def test_a_page_ends_when_its_link_does(kernel: Kernel, run: Any) -> None:
    link = run("--approver", "--for", "20s").stdout.strip()
    browser = Browser(urlsplit(link).netloc)
    browser.log_in(link)
    with browser.open_page() as tab:
        tab.wait(lambda shown: shown["role"] == "approver")
        tab.send({"type": "use"})
        assert tab.wait_closed() == 4401


def test_a_page_of_another_than_the_operator_sees_and_ends_only_its_own_session(kernel: Kernel) -> None:
    operator = browser_of(kernel)
    with browser_of(kernel, "approver").open_page() as tab, operator.open_page() as other:
        session = other.ask({"type": "sessions", "id": 900})["own"]
        assert tab.ask({"type": "sessions", "id": 900, "revoke": session})["code"] == "permission_denied"
        reply = tab.ask({"type": "sessions", "id": 901})
        assert [one["id"] for one in reply["sessions"]] == [reply["own"]]
        tab.send({"type": "sessions", "id": 902, "revoke": reply["own"]})
        assert tab.wait_closed() == 4401
        assert other.closed is None


@pytest.mark.parametrize(
    "arguments",
    [
        *(["--viewer", "--approver"], ["--with-contents"], ["--with-contents", "--approver"], ["--for", "soon"]),
        *(["--links", "--viewer"], ["--revoke", "x", "--links"], ["--links", "--for", "1h"], ["--read-only"]),
    ],
)
def test_options_that_make_no_sense_together_are_refused(run: Any, arguments: list[str]) -> None:
    refused = run(*arguments)

    assert refused.returncode == 2
    assert arguments[0].strip("-") in refused.stderr
