"""What an agent with a filtered network must not get: another network, or a part of another sandbox's."""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import trio

from agentos.agents.jail import filtered_network
from agentos.sandbox.sandbox import Sandbox
from agentos.sandbox.start.spawner import Spawner
from agentos.sandbox.steps import Step
from agentos_attacks.canaries import plant_canaries
from agentos_attacks.harness import ACCEPTED_CHECKS, ATTACKER, CHECK_SECONDS, PROGRAM
from agentos_attacks.inside.checks import BY_NAME
from tests.sandbox import jail
from tests.sandbox.jail import a_plan, line, python
from tests.support.wire import PATIENCE

WALLS = [
    name
    for name in BY_NAME
    if name.startswith(("net.", "ipc.", "ns.", "priv.", "surface.")) and name not in ACCEPTED_CHECKS
]
FILTERED: Mapping[str, Any] = {"network": "filtered", "sockets": filtered_network.addresses((5432,))}


async def start(spawner: Spawner, steps: Sequence[Step]) -> Sandbox:
    """A sandbox in which nothing is served."""
    sandbox = await spawner.spawn(steps)
    for one in sandbox.sockets:
        one.close()
    return sandbox


async def output(spawner: Spawner, code: str) -> str:
    """What this code prints in a sandbox with a filtered network."""
    return (await jail.ended(await start(spawner, python(code, **FILTERED)))).out


async def test_no_attack_on_the_walls_succeeds_that_fails_without_a_network(spawner: Spawner) -> None:
    with plant_canaries() as canaries:
        task = {"checks": WALLS, "targets": {**canaries.targets, "limits": {}}, "seconds": CHECK_SECONDS}
        argv = (sys.executable, "-I", "-S", f"/agent/{PROGRAM}", json.dumps(task))
        ended = await jail.ended(await start(spawner, a_plan(*argv, code=str(ATTACKER), **FILTERED)))

    found = {one["check"]: one for one in map(json.loads, ended.out.splitlines())}
    assert [*found] == WALLS
    assert [one for one in found.values() if one["outcome"] not in ("blocked", "n/a")] == []


async def test_it_cannot_change_its_network(spawner: Spawner) -> None:
    code = """
import fcntl, os, socket, struct
IP_TRANSPARENT, IP_FREEBIND, SO_MARK = 19, 15, 36
ROUTE = struct.pack('Q16s16s16sHhQPBBBx4xPQQH6x', 0, *3 * [struct.pack('H14x', 2)], 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
def attempt(name, function, *arguments):
    try: function(*arguments)
    except OSError as error: return
    print(name)
def write(path, text):
    with open(path, 'w') as file: file.write(text)
with socket.socket() as one:
    attempt('add a route', fcntl.ioctl, one, 0x890B, ROUTE)
    attempt('take loopback down', fcntl.ioctl, one, 0x8914, struct.pack('16sh22x', b'lo', 0))
    attempt('add an address', fcntl.ioctl, one, 0x8916, struct.pack('16sH2x4s16x', b'lo', 2, bytes([10, 0, 0, 1])))
    attempt('be transparent', one.setsockopt, socket.SOL_IP, IP_TRANSPARENT, 1)
    attempt('mark packets', one.setsockopt, socket.SOL_SOCKET, SO_MARK, 1)
attempt('netlink', socket.socket, socket.AF_NETLINK, socket.SOCK_RAW, 0)
attempt('packets', socket.socket, socket.AF_PACKET, socket.SOCK_RAW, 0)
for name in ('ip_unprivileged_port_start', 'ip_nonlocal_bind', 'ip_forward', 'ping_group_range'):
    attempt(name, write, f'/proc/sys/net/ipv4/{name}', '0')
for place in ('/etc/resolv.conf', '/etc/nsswitch.conf', '/etc/hosts'):
    attempt(place, write, place, 'nameserver 1.1.1.1')
    attempt(place, os.unlink, place)
print('done')
"""
    assert await output(spawner, code) == "done\n"


async def test_no_datagram_leaves_it(spawner: Spawner) -> None:
    code = """
import socket
PLACES = ['1.1.1.1', '255.255.255.255', '224.0.0.251', '169.254.169.254', '::ffff:1.1.1.1', 'ff02::1', 'fe80::1']
for place in PLACES:
    family = socket.AF_INET6 if ':' in place else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        try: one.sendto(b'secret', (place, 53))
        except OSError as error: continue
        print(place)
print('done')
"""
    assert await output(spawner, code) == "done\n"


async def test_a_listener_in_one_jail_deceives_no_other(spawner: Spawner) -> None:
    """An agent may answer itself at any address of the range and a port that the kernel doesn't have."""
    listener = """
import socket
with socket.create_server(('198.18.7.9', 5433)) as server:
    socket.create_connection(('198.18.7.9', 5433)).close()
    print('here', flush=True)
    server.accept()
    server.accept()
"""
    deceiver = await start(spawner, python(listener, **FILTERED))
    with trio.fail_after(PATIENCE):
        assert await line(deceiver) == "here\n"

    knock = (
        "import socket\ntry: socket.create_connection(('198.18.7.9', 5433), 5)\nexcept OSError as error: print(error)"
    )

    assert await output(spawner, knock) == "[Errno 111] Connection refused\n"
    await jail.kill(deceiver)
