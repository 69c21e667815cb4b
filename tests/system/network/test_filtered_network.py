"""The way out of a filtered jail follows the agent's rules while it runs, and a person's answers."""

import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel, shared, until
from tests.support.wire import PATIENCE
from tests.system.agents import up, written
from tests.system.sites import Sites

SLEEP = ["sleep", "1000"]


@pytest.fixture(scope="module")
def kernel(kernels: None, sites: Sites) -> Iterator[Kernel]:
    with shared(f'[http]\nresolver = "{sites.dns}"\n') as started:
        yield started


def grants(sites: Sites, *names: str, **more: list[str]) -> dict[str, Any]:
    """A set that allows these hosts of the test, on their port."""
    allowed = [f"{name}:{sites.http}" for name in (*names, "127.0.0.1")]
    return {"level": "sandboxed", "allow": {"domains": allowed}, **{k: {"domains": v} for k, v in more.items()}}


def start(client: AgentOSClient, permissions: dict[str, Any], command: Sequence[str] = SLEEP) -> int:
    reply = client.spawn("web", command=command, network="filtered", permissions=permissions)
    return int(up(reply)["id"])


def run(client: AgentOSClient, line: str) -> str:
    return str(up(client.exec(f"exec 2>&1; {line}", name="web", timeout=PATIENCE))["stdout"])


class InBackground(threading.Thread):
    """A shell line in the jail, run while the test does something else; ``output`` is what it printed."""

    def __init__(self, kernel: Kernel, line: str) -> None:
        super().__init__()
        self._kernel, self._line, self.output = kernel, line, ""
        self.start()

    def run(self) -> None:
        with self._kernel.client() as client:
            self.output = run(client, self._line)

    def wait(self) -> str:
        self.join(100)
        assert not self.is_alive(), self._line
        return self.output


def pending(client: AgentOSClient) -> dict[str, Any]:
    until(lambda: up(client.approvals())["pending"], "an approval is pending")
    [found] = up(client.approvals())["pending"]
    return dict(found)


def test_a_tunnel_waits_for_a_person(kernel: Kernel, client: AgentOSClient, sites: Sites) -> None:
    start(client, grants(sites, ask=[f"files.test:{sites.http}"]))
    url = f"http://files.test:{sites.http}/hello.txt"

    fetched = InBackground(kernel, f"curl -sSp {url}")
    asked = pending(client)
    assert f"CONNECT files.test:{sites.http}" in asked["shown"]
    up(client.decide(asked["id"], True))
    assert fetched.wait() == "hello\n"

    fetched = InBackground(kernel, f"curl -sS {url}?secret=1")
    asked = pending(client)
    assert f"GET {url}?secret=1" in asked["shown"]
    up(client.decide(asked["id"], False, reason="not today"))
    assert "not today" in fetched.wait()


def test_what_a_client_gave_up_stays_on_the_list_and_holds_no_connection(
    kernel: Kernel, client: AgentOSClient, sites: Sites
) -> None:
    start(client, grants(sites, ask=[f"files.test:{sites.http}"]))

    assert "timed out" in run(client, f"curl -sSp -m 2 http://files.test:{sites.http}/hello.txt")
    asked = pending(client)
    up(client.decide(asked["id"], True))

    assert run(client, f"curl -sSp http://files.test:{sites.http}/hello.txt") == "hello\n", "the ticket is used"


def test_a_tunnel_ends_when_its_rule_is_taken_away(kernel: Kernel, client: AgentOSClient, sites: Sites) -> None:
    agent = start(client, grants(sites, "files.test"))
    tunnel = f"CONNECT files.test:{sites.http} HTTP/1.1\\r\\nHost: files.test\\r\\n\\r\\n"
    code = f"import socket; s = socket.create_connection(('127.0.0.1', 880)); s.send(b'{tunnel}'); print(s.recv(99));"
    code += "open('/tmp/open', 'w'); print(s.recv(99))"
    waiting = InBackground(kernel, f'python3 -c "{code}"')
    until(lambda: run(client, "ls /tmp/open") == "/tmp/open\n", "the tunnel is open")

    up(client.set_permissions(agent_id=agent, permissions=grants(sites)))

    assert waiting.wait().endswith("b''\n"), waiting.output
    assert "no rule of" in run(client, f"curl -sS http://files.test:{sites.http}/hello.txt")


def test_a_port_that_a_new_rule_names_is_served_at_once(client: AgentOSClient, sites: Sites) -> None:
    agent = start(client, {"level": "sandboxed"})
    fetch = f"curl -sS --noproxy '*' http://files.test:{sites.http}/hello.txt"
    assert "Could not resolve host" in run(client, fetch)

    up(client.set_permissions(agent_id=agent, permissions=grants(sites, "files.test")))

    until(lambda: run(client, fetch) == "hello\n", "the port has a listener")


def test_a_thousand_hosts_break_nothing(client: AgentOSClient, sites: Sites) -> None:
    start(client, {"level": "sandboxed", "allow": {"domains": [f"*:{sites.http}", f"127.0.0.1:{sites.http}"]}})
    code = "import socket; print(len({socket.gethostbyname(f'host{i}.many.test') for i in range(1000)}))"

    assert run(client, f'python3 -c "{code}"') == "1000\n"
    assert run(client, f"curl -sS --noproxy '*' http://files.test:{sites.http}/hello.txt") == "hello\n"
    assert not [name for name in sites.asked if "many" in name], "no such question leaves the host"


def test_an_agents_end_ends_its_connections(client: AgentOSClient, sites: Sites) -> None:
    tunnel = f"CONNECT files.test:{sites.http} HTTP/1.1\\r\\nHost: files.test\\r\\n\\r\\n"
    code = f"import socket; s = socket.create_connection(('127.0.0.1', 880)); s.send(b'{tunnel}'); s.recv(99);"
    code += "print('open', flush=True); s.recv(99)"
    agent = start(client, grants(sites, "files.test"), [sys.executable, "-c", code])
    written(client, "web", "open")

    assert client.kill(agent_id=agent, grace=0)

    def ended() -> list[str]:
        entries = client.get_audit_log(limit=100, agent_id=agent)["entries"]
        return [one["outcome"] for one in entries if one["call"] == "HTTP" and one["phase"] == "outcome"]

    until(ended, "the tunnel's end is recorded")
    assert ended() in (["ok"], ["cancelled"]), "the program's end, or the agent's"
