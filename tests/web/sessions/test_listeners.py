"""Where the dashboard listens: of no name that a link has may another program have the address."""

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

import pytest

from agentos.kernel.wire.listener import OPERATOR_RESERVE
from agentos.userland.web.serve import DashboardError, DashboardOptions, open_listeners
from tests.conftest import OwnKernel
from tests.support.ports import free_port
from tests.web.conftest import DASHBOARD, Browser, link_of

# Tries to listen at a port, as another uid if it can, in all ways that share one; prints where it could.
TAKE = """
import itertools, os, socket, sys
port = int(sys.argv[1])
if os.geteuid() == 0:
    os.setgid(65534), os.setuid(65534)
for address in ("127.0.0.1", "::1", "0.0.0.0", "::", "::ffff:127.0.0.1"):
    for reuse_address, reuse_port, only_v6 in itertools.product((0, 1), repeat=3):
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse_address)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, reuse_port)
            if ":" in address:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only_v6)
            try:
                sock.bind((address, port))
                sock.listen()
            except OSError:
                continue
            print(address, reuse_address, reuse_port, only_v6)
"""


@contextlib.contextmanager
def listening(options: DashboardOptions) -> Iterator[Sequence[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(one) for one in open_listeners(options)]


@pytest.mark.parametrize(
    ("host", "addresses"),
    [
        ("127.0.0.1", {"127.0.0.1", "::1"}),
        ("::1", {"127.0.0.1", "::1"}),
        ("localhost", {"127.0.0.1", "::1"}),
        ("0.0.0.0", {"0.0.0.0", "::1"}),
        ("::", {"0.0.0.0", "::"}),
        ("127.0.0.2", {"127.0.0.2"}),
    ],
)
def test_both_families_of_the_loopback_are_bound_at_one_port(host: str, addresses: set[str]) -> None:
    with listening(DashboardOptions(host, 0, insecure=True)) as listeners:
        assert {one.getsockname()[0] for one in listeners} == addresses
        assert len({one.getsockname()[1] for one in listeners}) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::"])
def test_no_other_uid_shares_the_port(host: str) -> None:
    with listening(DashboardOptions(host, 0, insecure=True)) as listeners:
        port = listeners[0].getsockname()[1]
        taken = subprocess.run([sys.executable, "-c", TAKE, str(port)], capture_output=True, text=True, check=True)
    assert taken.stdout == ""


@pytest.mark.parametrize(
    ("family", "address", "named"), [(socket.AF_INET6, "::1", "[::1]"), (socket.AF_INET, "127.0.0.1", "127.0.0.1")]
)
def test_a_port_of_which_another_program_has_one_family_isnt_used(
    family: socket.AddressFamily, address: str, named: str
) -> None:
    with socket.create_server((address, free_port()), family=family) as other:
        port = other.getsockname()[1]
        with pytest.raises(DashboardError) as refused:
            open_listeners(DashboardOptions("127.0.0.1", port))
    assert f"{named}:{port}" in str(refused.value)
    with listening(DashboardOptions("127.0.0.1", port)) as listeners:  # nothing was left open
        assert len(listeners) == 2


def test_without_a_port_of_its_own_the_next_one_is_taken_whole() -> None:
    with listening(DashboardOptions()) as first, listening(DashboardOptions()) as second:
        ports = [{one.getsockname()[1] for one in listeners} for listeners in (first, second)]
    assert [len(one) for one in ports] == [1, 1]
    assert ports[0] != ports[1]


def test_strangers_on_the_port_leave_the_operators_connections(own_kernel: OwnKernel) -> None:
    places = 2
    kernel = own_kernel(f"[kernel]\nmax_connections = {OPERATOR_RESERVE + places}\n{DASHBOARD}")
    stranger = Browser(urlsplit(link_of(kernel)).netloc)
    with contextlib.ExitStack() as held:
        for _ in range(places):
            assert held.enter_context(stranger.connect()).closed is None

        assert stranger.get("/")[0] == 503
        assert kernel.answers()
