"""Port 443 of a filtered network, end to end: the server name of TLS has to be the host that a rule grants."""

import functools
import os
import random
import shutil
import threading
from collections.abc import Iterator

import pytest

from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel, shared
from tests.support.servers.http_server import make_server_context
from tests.support.wire import PATIENCE
from tests.system.agents import up
from tests.system.network.test_filtered_programs import IGNORE_PROXY, TRUST
from tests.system.sites import Files, Server, Sites, running_dns

PORT = 443
TOML = """
[http]
resolver = "{dns}"
[permissions.web]
level = "sandboxed"
[permissions.web.allow]
domains = ["files.test", "{host}:443"]
"""
CURL = "curl -sS --max-time 60"


@pytest.fixture(scope="module")
def secure(sites: Sites) -> Iterator[str]:
    """A server for files.test and evil.test, as of a provider that serves both; its address, of loopback.

    That is a random one, as the port can't be: other tests may serve it at theirs. The server wants another group for
    the key exchange than clients guess, so each handshake has two ClientHellos.
    """
    if shutil.which("curl", path="/usr/bin:/bin") is None:
        pytest.skip("curl isn't installed in /usr/bin: port 443 NOT tested with a filtered network")
    host = f"127.{random.randrange(1, 255)}.{random.randrange(256)}.{random.randrange(1, 255)}"
    try:
        server = Server((host, PORT), functools.partial(Files, directory=str(sites.ca.parent / "www")))
    except OSError as error:
        pytest.skip(f"{host}:{PORT} can't be listened on as uid {os.geteuid()}: {error.strerror}: NOT tested")
    context = make_server_context(sites.ca.parent, "DNS:files.test", "DNS:evil.test")
    context.set_ecdh_curve("secp384r1")
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield host
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def kernel(kernels: None, secure: str) -> Iterator[Kernel]:
    with (
        running_dns("files.test", "evil.test", address=secure) as dns,
        shared(TOML.format(dns="{}:{}".format(*dns.address), host=secure)) as started,
    ):
        yield started


@pytest.fixture(scope="module")
def web(kernel: Kernel, sites: Sites) -> Iterator[AgentOSClient]:
    command = ["sleep", "1000"]
    with kernel.client() as client:
        up(client.spawn("web", command=command, code=str(sites.ca), network="filtered", permissions="web", env=TRUST))
        yield client


def run(web: AgentOSClient, line: str) -> tuple[int, str]:
    reply = up(web.exec(f"exec 2>&1; {line}", name="web", timeout=PATIENCE))
    return reply["exit_code"], reply["stdout"]


@pytest.mark.parametrize("before", ["", IGNORE_PROXY])
def test_the_granted_site_is_reached(web: AgentOSClient, before: str) -> None:
    assert run(web, f"{before} {CURL} https://files.test/hello.txt") == (0, "hello\n")
    assert run(web, f"{before} {CURL} https://files.test/large.bin | wc -c") == (0, f"{1 << 20}\n")


@pytest.mark.parametrize("before", ["", IGNORE_PROXY])
def test_another_site_of_the_same_server_is_not_reached(web: AgentOSClient, before: str) -> None:
    """By a tunnel to the granted name in which another one is asked for."""
    status, said = run(web, f"{before} {CURL} --connect-to evil.test:443:files.test:443 https://evil.test/hello.txt")

    assert status == 35, said
    assert "alert access denied" in said


@pytest.mark.parametrize("before", ["", IGNORE_PROXY])
def test_what_is_not_tls_does_not_pass(web: AgentOSClient, before: str) -> None:
    status, said = run(web, f"{before} {CURL} --proxytunnel http://files.test:443/hello.txt")

    assert status != 0
    assert "hello" not in said
