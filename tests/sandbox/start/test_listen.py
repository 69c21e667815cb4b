"""A listener inside a sandbox's network, on which we accept."""

import errno
import os
import signal
import socket
import sys
from typing import Any

import pytest
import trio

from agentos.sandbox.errors import SandboxError, StepFailed
from agentos.sandbox.inside import enter
from agentos.sandbox.plan import plan_unjailed
from agentos.sandbox.policy import Limits, Program
from agentos.sandbox.report import probe
from agentos.sandbox.sandbox import Sandbox
from agentos.sandbox.start.spawner import Spawner
from tests.sandbox import jail
from tests.sandbox.attacks.test_enter import beside, python_beside
from tests.sandbox.jail import Belongings, kill, line, python, zygote_closes
from tests.support.runs.rounds import rounds
from tests.support.wire import PATIENCE

SO_NETNS_COOKIE = 71
FOREVER = "import time; print('here', flush=True); time.sleep(600)"
CALLER = """
import socket
while True:
    try: connection = socket.create_connection(('127.0.0.1', 4711))
    except ConnectionRefusedError: continue
    break
print(connection.recv(100), flush=True)
connection.sendall(b'thanks')
"""


async def an_agent(spawner: Spawner, code: str = FOREVER, **policy: Any) -> Sandbox:
    sandbox = await spawner.spawn(python(code, **policy))
    await line(sandbox)
    return sandbox


async def listen(spawner: Spawner, sandbox: Sandbox, port: int = 0) -> socket.socket:
    """A TCP listener on the sandbox's 127.0.0.1."""
    (listener,) = await spawner.listen(sandbox, [("tcp", "127.0.0.1", port)])
    return listener


def test_without_a_user_namespace_none_is_joined_and_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    finders = [*sys.meta_path]
    monkeypatch.setattr(sys, "meta_path", finders)

    for namespaces in ({}, {"net": -1}):
        with pytest.raises(ValueError, match="no sandbox to join"):
            enter.join(namespaces)
        assert finders


async def test_a_program_reaches_us_at_its_own_loopback(spawner: Spawner) -> None:
    agent = await spawner.spawn(python(CALLER))

    with await listen(spawner, agent, 4711) as listener:
        with trio.fail_after(PATIENCE):
            connection, _ = await trio.socket.from_stdlib_socket(listener).accept()
        await connection.send(b"from outside")
        assert await connection.recv(100) == b"thanks"

    assert (await jail.ended(agent)).out == "b'from outside'\n"
    connection.close()


async def test_one_that_the_policy_names_is_there_before_the_program(spawner: Spawner) -> None:
    code = "import socket; print(socket.create_connection(('127.0.0.1', 80)).recv(100))"
    before = Belongings.now()
    agent = await spawner.spawn(python(code, sockets=(("tcp", "127.0.0.1", 80),)))

    with agent.sockets[0] as listener:
        assert (listener.getsockname(), listener.getblocking()) == (("127.0.0.1", 80), False)
        with trio.fail_after(PATIENCE):
            connection, _ = await trio.socket.from_stdlib_socket(listener).accept()
        with connection:
            await connection.send(b"from outside")

    assert (await jail.ended(agent)).out == "b'from outside'\n"
    assert Belongings.now() == before


async def test_it_is_in_the_programs_network_and_nowhere_else(spawner: Spawner) -> None:
    agent = await an_agent(spawner)

    with await listen(spawner, agent) as listener, socket.socket() as ours:
        address, port = listener.getsockname()
        assert (address, listener.getblocking(), os.get_inheritable(listener.fileno())) == ("127.0.0.1", False, False)
        assert port > 0
        assert _network(listener) != _network(ours)

    await kill(agent)


def _network(of: socket.socket) -> bytes:
    return of.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, 8)


async def test_low_ports_are_its_own_too(spawner: Spawner) -> None:
    agent = await an_agent(spawner)

    with await listen(spawner, agent, 80) as listener:
        assert listener.getsockname() == ("127.0.0.1", 80)

    await kill(agent)


async def test_a_port_that_the_program_has_taken_is_an_error(spawner: Spawner) -> None:
    code = (
        "import socket, time; s = socket.create_server(('127.0.0.1', 4711)); print('here', flush=True); time.sleep(600)"
    )
    agent = await an_agent(spawner, code)
    before = Belongings.now()

    with pytest.raises(StepFailed, match=r"Listen 4711: tcp 127\.0\.0\.1:4711: Address already in use") as failure:
        await listen(spawner, agent, 4711)

    assert failure.value.errno == errno.EADDRINUSE
    assert Belongings.now() == before
    await kill(agent)


async def test_a_program_cant_take_the_port_as_well(spawner: Spawner) -> None:
    code = """
import socket, time
for option in ('', 'SO_REUSEADDR', 'SO_REUSEPORT'):
    for address in ('127.0.0.1', '0.0.0.0'):
        with socket.socket() as taken:
            if option: taken.setsockopt(socket.SOL_SOCKET, getattr(socket, option), 1)
            try: taken.bind((address, 4711)); taken.listen(); print('taken', option, address)
            except OSError as error: pass
print('done')
"""
    agent = await an_agent(spawner)
    with await listen(spawner, agent, 4711):
        ended = await jail.ended(await spawner.enter(agent, python_beside(code)))

    assert (ended.out, ended.err) == ("done\n", "")
    await kill(agent)


@pytest.mark.parametrize("port", [-1, 65536])
async def test_a_port_that_cant_be_is_an_error(spawner: Spawner, port: int) -> None:
    agent = await an_agent(spawner)
    before = Belongings.now()

    with pytest.raises(StepFailed, match=f"Listen {port}: .*port must be 0-65535"):
        await listen(spawner, agent, port)

    assert Belongings.now() == before
    await kill(agent)


async def test_with_the_hosts_network_it_is_refused(spawner: Spawner) -> None:
    agent = await an_agent(spawner, network="host")
    before = Belongings.now()

    with pytest.raises(SandboxError, match="it has the host's network"):
        await listen(spawner, agent)

    assert Belongings.now() == before
    await kill(agent)


async def test_without_walls_it_is_refused(spawner: Spawner) -> None:
    sandbox = await spawner.spawn(plan_unjailed(Program(["/bin/sleep", "600"], {}, "/"), probe.read_host(), Limits()))

    with pytest.raises(SandboxError, match="it has the host's network"):
        await listen(spawner, sandbox)

    await kill(sandbox)


async def test_an_ended_sandbox_is_an_error(spawner: Spawner) -> None:
    agent = await an_agent(spawner)
    await kill(agent)
    before = Belongings.now()

    with pytest.raises(SandboxError, match="has ended"):
        await listen(spawner, agent)

    assert Belongings.now() == before


async def test_a_frozen_sandbox_is_listened_in(spawner: Spawner) -> None:
    agent = await an_agent(spawner)
    agent.freeze()

    (await listen(spawner, agent)).close()

    await kill(agent)


async def test_no_process_inside_sees_the_process_that_makes_the_socket(spawner: Spawner) -> None:
    code = """
import os
print('here', flush=True)
seen = set()
while not os.path.exists('/workspace/enough'):
    seen |= {name for name in os.listdir('/proc') if name.isdigit()}
print(len(seen))
"""
    agent = await an_agent(spawner, code)

    for _ in range(50):
        (await listen(spawner, agent)).close()

    touch = await spawner.enter(agent, beside("/bin/touch", "/workspace/enough"))
    await jail.ended(touch)
    ended = await jail.ended(agent)
    # itself, its PID 1, and at most the four that come of entering
    assert int(ended.out) <= 2 + 4


async def test_many_leave_no_descriptor_or_zombie(spawner: Spawner) -> None:
    agent = await an_agent(spawner)
    (await listen(spawner, agent)).close()
    before, zygotes = Belongings.now(), len(os.listdir(f"/proc/{spawner.zygote.pid}/fd"))

    for _ in range(rounds(5)):
        (await listen(spawner, agent)).close()

    assert Belongings.now() == before
    await zygote_closes(spawner, zygotes)
    await kill(agent)


async def test_a_cancelled_one_leaves_nothing_at_whatever_moment(spawner: Spawner) -> None:
    agent = await an_agent(spawner)
    before = Belongings.now()

    for delay in range(20):
        with trio.move_on_after(delay / 2000):
            (await listen(spawner, agent)).close()

    assert Belongings.now() == before
    await kill(agent)


async def test_a_dead_zygote_is_replaced_on_the_way(spawner: Spawner) -> None:
    agent = await an_agent(spawner)
    former = spawner.zygote.pid

    os.kill(former, signal.SIGKILL)

    (await listen(spawner, agent)).close()
    assert spawner.zygote.pid != former
    await kill(agent)
