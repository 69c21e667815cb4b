"""The network of a filtered jail: the kernel's sockets, addresses that lead to them, and no way out."""

import os
import socket
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import trio

from agentos.agents.jail import filtered_network, openai_endpoint
from agentos.agents.jail.filtered_network import FilteredNetwork
from agentos.sandbox.errors import SandboxError
from agentos.sandbox.sandbox import Sandbox
from agentos.sandbox.start.spawner import Spawner
from agentos.sandbox.steps import Step
from tests.sandbox import jail
from tests.sandbox.attacks.test_enter import beside
from tests.sandbox.jail import Belongings, kill, line, python
from tests.sandbox.start.test_listen import FOREVER
from tests.support.wire import PATIENCE

KNOCK = """
import socket, sys
for place in sys.argv[1:]:
    address, port = place.split(':')
    try: connection = socket.create_connection((address, int(port)), 5)
    except OSError as error: print(place, error.strerror, flush=True); continue
    print(place, connection.recv(100).decode(), flush=True)
"""


@pytest.fixture
def opened() -> Iterator[list[FilteredNetwork]]:
    """Networks to be closed when the test is over."""
    networks: list[FilteredNetwork] = []
    yield networks
    for network in networks:
        network.close()


async def filtered(
    spawner: Spawner, opened: list[FilteredNetwork], *arguments: str, code: str = KNOCK, ports: tuple[int, ...] = ()
) -> tuple[Sandbox, FilteredNetwork]:
    steps = python(code, *arguments, network="filtered", sockets=filtered_network.addresses(ports))
    sandbox = await spawner.spawn(steps)

    opened.append(FilteredNetwork.take(sandbox.sockets, partial(spawner.listen, sandbox)))
    return sandbox, opened[-1]


def knock(*places: str) -> tuple[Step, ...]:
    """Steps of a program that enters a filtered jail and connects there."""
    return beside(sys.executable, "-I", "-S", "-c", KNOCK, *places, network="filtered")


async def greet(listener: socket.socket) -> None:
    """Answer one connection with the address that it was made to."""
    with trio.fail_after(PATIENCE):
        connection, _ = await trio.socket.from_stdlib_socket(listener).accept()
    with connection:
        await connection.send(b"%s:%s" % tuple(str(part).encode() for part in connection.getsockname()))


async def test_the_sockets_are_bound_before_the_program_starts(spawner: Spawner, opened: list[FilteredNetwork]) -> None:
    sandbox, network = await filtered(spawner, opened, code=FOREVER, ports=(5432,))

    assert network.proxy.getsockname() == ("127.0.0.1", filtered_network.PROXY_PORT)
    assert network.dns_udp.getsockname() == network.dns_tcp.getsockname() == ("127.0.0.1", 53)
    assert (network.dns_udp.type, network.dns_tcp.type) == (socket.SOCK_DGRAM, socket.SOCK_STREAM)
    assert {port: one.getsockname() for port, one in network.ports.items()} == {
        port: ("0.0.0.0", port) for port in (80, 443, 5432)
    }
    everything = [network.proxy, network.dns_udp, network.dns_tcp, *network.ports.values()]
    assert not any(one.getblocking() or os.get_inheritable(one.fileno()) for one in everything)
    await kill(sandbox)


async def test_every_address_of_the_range_leads_to_the_port_and_is_known(
    spawner: Spawner, opened: list[FilteredNetwork]
) -> None:
    places = ["198.18.0.1:443", "198.18.7.9:80", "198.19.255.254:443"]
    sandbox, network = await filtered(spawner, opened, *places)

    for place in places:
        await greet(network.ports[int(place.split(":")[1])])

    assert (await jail.ended(sandbox)).out.splitlines() == [f"{place} {place}" for place in places]


async def test_no_other_address_leads_anywhere(spawner: Spawner, opened: list[FilteredNetwork]) -> None:
    places = ["1.1.1.1:443", "198.17.255.255:443", "198.20.0.0:443", "169.254.169.254:80", "10.0.0.1:443"]
    sandbox, _ = await filtered(spawner, opened, *places)

    assert (await jail.ended(sandbox)).out.splitlines() == [f"{place} Network is unreachable" for place in places]


async def test_a_port_that_no_rule_names_is_refused_at_once(spawner: Spawner, opened: list[FilteredNetwork]) -> None:
    sandbox, _ = await filtered(spawner, opened, "198.18.7.9:22")

    assert (await jail.ended(sandbox)).out == "198.18.7.9:22 Connection refused\n"


async def test_the_endpoint_of_the_model_keeps_its_port_beside_the_listener_of_all_addresses(
    spawner: Spawner, opened: list[FilteredNetwork]
) -> None:
    addresses = (openai_endpoint.ADDRESS, *filtered_network.addresses(()))
    sandbox = await spawner.spawn(python(KNOCK, "127.0.0.1:80", "198.18.0.1:80", network="filtered", sockets=addresses))
    http, *rest = sandbox.sockets
    opened.append(FilteredNetwork.take(rest, partial(spawner.listen, sandbox)))

    with http:
        await greet(http)
    await greet(opened[-1].ports[80])

    assert (await jail.ended(sandbox)).out.splitlines() == ["127.0.0.1:80 127.0.0.1:80", "198.18.0.1:80 198.18.0.1:80"]


async def test_a_port_is_added_while_the_program_runs(spawner: Spawner, opened: list[FilteredNetwork]) -> None:
    sandbox, network = await filtered(spawner, opened, code=FOREVER)
    before = Belongings.now()

    added = await network.add_ports([5432, 443, 53, filtered_network.PROXY_PORT])

    assert sorted(added) == [53, filtered_network.PROXY_PORT, 5432]
    assert network.ports.keys() == {80, 443, *added}
    assert await network.add_ports([5432]) == {}
    entered = await spawner.enter(sandbox, knock("198.18.3.4:5432"))
    await greet(added[5432])
    assert (await jail.ended(entered)).out == "198.18.3.4:5432 198.18.3.4:5432\n"
    for one in added.values():
        one.close()
    assert Belongings.now() == before
    await kill(sandbox)


async def test_there_are_at_most_64_ports(spawner: Spawner, opened: list[FilteredNetwork]) -> None:
    sandbox, network = await filtered(spawner, opened, code=FOREVER, ports=tuple(range(2000, 2100)))

    assert len(network.ports) == filtered_network.MAX_PORTS
    assert {80, 443, 2000, 2061} <= network.ports.keys()
    assert await network.add_ports([5432]) == {}
    await kill(sandbox)


async def test_a_port_that_the_program_has_taken_is_left_out_and_reported(
    spawner: Spawner, opened: list[FilteredNetwork], caplog: pytest.LogCaptureFixture
) -> None:
    code = (
        "import socket, time; s = socket.create_server(('127.0.0.1', 5432)); print('here', flush=True); time.sleep(600)"
    )
    sandbox, network = await filtered(spawner, opened, code=code)
    await line(sandbox)
    before = Belongings.now()

    added = await network.add_ports([5431, 5432])

    assert added.keys() == {5431}
    assert await network.add_ports([5432]) == {}
    (report,) = caplog.messages
    assert report.startswith("its rules name ports that aren't served: 5432 (")
    added[5431].close()
    assert Belongings.now() == before
    await kill(sandbox)


async def test_no_port_is_added_to_a_jail_that_has_ended(spawner: Spawner, opened: list[FilteredNetwork]) -> None:
    sandbox, network = await filtered(spawner, opened, code=FOREVER)
    await kill(sandbox)

    with pytest.raises(SandboxError, match="has ended"):
        await network.add_ports([5432])


async def test_a_program_cant_take_a_share_of_the_kernels_ports(
    spawner: Spawner, opened: list[FilteredNetwork]
) -> None:
    code = """
import socket
import sys
for address in ('0.0.0.0', '127.0.0.1', '198.18.7.9'):
    for port in (53, 80, 443, 880, 5432):
        for kind in ('SOCK_STREAM', 'SOCK_DGRAM'):
            with socket.socket(socket.AF_INET, getattr(socket, kind)) as taken:
                for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
                    taken.setsockopt(socket.SOL_SOCKET, option, 1)
                try: taken.bind((address, port)); kind == 'SOCK_STREAM' and taken.listen()
                except OSError as error: continue
                print(kind, address, port)
"""
    sandbox, _ = await filtered(spawner, opened, code=code, ports=(5432,))

    ended = await jail.ended(sandbox)
    assert (ended.out.splitlines(), ended.err) == (
        [f"SOCK_DGRAM {one} 5432" for one in ("0.0.0.0", "127.0.0.1", "198.18.7.9")],
        "",
    )


async def test_it_has_a_resolver_of_its_own_and_the_hosts_certificates(
    spawner: Spawner, opened: list[FilteredNetwork]
) -> None:
    code = (
        "import os; print(open('/etc/resolv.conf').read(), *map(os.path.isdir, ['/etc/ssl/certs', '/etc/ssl/private']))"
    )
    sandbox, _ = await filtered(spawner, opened, code=code)

    certificates = Path("/etc/ssl/certs").is_dir()  # noqa: ASYNC240 - a test may block
    assert (await jail.ended(sandbox)).out == f"nameserver 127.0.0.1\n {certificates} False\n"
