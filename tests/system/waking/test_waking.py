"""Agents that messages and events start, and that end when nothing comes."""

from pathlib import Path

from agentos_sdk import AgentOSClient
from tests.conftest import OwnKernel
from tests.support.kernel import until
from tests.support.wire import PATIENCE
from tests.system.agents import in_state, info, lines, up
from tests.system.conftest import Declare
from tests.system.lives.test_containers import SLEEPS, child
from tests.system.lives.test_start_stop import changed

ANSWERS = """
from agentos_sdk import AgentOSClient

me = AgentOSClient()
while True:
    for message in me.recv_messages(timeout=3600)["messages"]:
        print("got", message["message"], flush=True)
        me.send_message(message["message"], to=message["from_id"])
"""

ONE = """
from agentos_sdk import AgentOSClient

for message in AgentOSClient().recv_messages(1, timeout=3600)["messages"]:
    print("got", message["message"], flush=True)
"""
"""Ends after one message."""

NEWS = """
from agentos_sdk import AgentOSClient

me = AgentOSClient()
while True:
    for message in me.recv_messages(timeout=3600)["messages"]:
        print(message["from_name"], message["message"]["type"], message["message"]["data"]["key"], flush=True)
"""

FLEET, WORKING = 1000, 20


def script(directory: Path, text: str) -> str:
    path = directory / f"agent{len(list(directory.iterdir()))}.py"
    path.write_text(text)
    return f'script = "{path}"'


def lives(client: AgentOSClient, name: str) -> int:
    return int(up(client.inspect(name))["lives"])


def answer(client: AgentOSClient) -> object:
    [message] = client.recv_messages(1, timeout=PATIENCE)["messages"]
    return message["message"]


def test_a_message_starts_an_agent_which_reads_it(declare: Declare, tmp_path: Path) -> None:
    kernel = declare(child("echo", None, script(tmp_path, ANSWERS), 'start = "on_message"'))
    with kernel.client() as client:
        waiting = info(client, "echo")
        assert (waiting["state"], waiting["pid"]) == ("waiting", None)
        assert (waiting["wakes_on"], waiting["next_at"]) == ("message", None)

        for number in range(50):  # most of them while it starts
            up(client.send_message(number, to_name="echo"))

        assert [answer(client) for _ in range(50)] == list(range(50))
        assert lives(client, "echo") == 1
        event = next(iter(client.follow_events(["AGENT_WOKEN"], agents=[waiting["id"]], since=0)))
        assert (event["data"]["name"], event["data"]["reason"]) == ("echo", "message")


def test_each_message_is_read_by_an_agent_that_ends_after_one(declare: Declare, tmp_path: Path) -> None:
    with declare(child("one", None, script(tmp_path, ONE), 'start = "on_message"')).client() as client:
        for number in range(5):
            up(client.send_message(number, to_name="one"))

        until(lambda: lines(client, "one") == [f"got {number}" for number in range(5)], "all five are read, in order")
        in_state(client, "one", "waiting")
        assert lives(client, "one") == 5
        assert info(client, "one")["restarts"] == 0


def test_an_idle_agent_ends_and_the_next_message_starts_it(declare: Declare, tmp_path: Path) -> None:
    fields = (script(tmp_path, ANSWERS), 'start = "on_message"', 'idle_stop = "1s"')
    kernel = declare(child("echo", None, *fields))
    with kernel.client() as client:
        for number in range(3):
            up(client.send_message(number, to_name="echo"))
            assert answer(client) == number
            in_state(client, "echo", "waiting")
            assert lives(client, "echo") == number + 1
    kernel.wait_line("echo: nothing came for 1s: it ends, and waits")


def test_an_agent_that_leaves_its_messages_unread_is_not_started_for_them_again(declare: Declare) -> None:
    kernel = declare(child("deaf", '["true"]', 'start = "on_message"'))
    with kernel.client() as client:
        up(client.send_message("a", to_name="deaf"))
        kernel.wait_line("deaf: ended without reading its messages: the next one starts it")
        assert lives(client, "deaf") == 1

        up(client.send_message("b", to_name="deaf"))
        until(lambda: lives(client, "deaf") == 2, "the next one starts it")


def test_an_event_starts_an_agent_and_is_in_its_mailbox(declare: Declare, tmp_path: Path) -> None:
    start = 'start = { on_event = "STATE_CHANGED", prefix = "orders/" }'
    with declare(child("orders", None, script(tmp_path, NEWS), start)).client() as client:
        up(client.store("bills/1", 1, scope="global"))
        for number in range(20):
            up(client.store(f"orders/{number}", number, scope="global"))

        expected = [f"kernel STATE_CHANGED orders/{number}" for number in range(20)]
        until(lambda: lines(client, "orders") == expected, "all orders and nothing else")
        assert (lives(client, "orders"), info(client, "orders")["wakes_on"]) == (1, "event STATE_CHANGED orders/")


def test_a_stopped_agent_is_not_started_until_start(declare: Declare, tmp_path: Path) -> None:
    with declare(child("echo", None, script(tmp_path, ANSWERS), 'start = "on_message"')).client() as client:
        changed(client.stop("echo"))
        assert client.send_message("lost", to_name="echo")["code"] == "not_found"

        assert changed(client.start("echo")) == {"echo": "waiting"}
        up(client.send_message("there", to_name="echo"))
        assert answer(client) == "there"


def test_a_thousand_agents_that_wait_cost_no_process(own_kernel: OwnKernel) -> None:
    agents = [child(f"a{number}", SLEEPS, 'start = "on_message"') for number in range(FLEET)]
    kernel = own_kernel("".join(agents))
    with kernel.client() as client:
        assert {agent["state"] for agent in client.list_agents()} == {"waiting"}
        assert [kernel.processes_of_agent(number) for number in range(1, FLEET + 1, 100)] == [[]] * 10

        for number in range(0, FLEET, FLEET // WORKING):
            up(client.send_message("wake", to_name=f"a{number}"))

        until(lambda: count_running(client) == WORKING, "those with a message run", show=lambda: count_running(client))
        assert len(client.list_agents()) == FLEET


def count_running(client: AgentOSClient) -> int:
    return sum(agent["pid"] is not None for agent in client.list_agents())
