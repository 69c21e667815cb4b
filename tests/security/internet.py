"""Two network namespaces: a host with public addresses of its own, and an internet in which every address answers.

``unshare --user --map-root-user --net python -m tests.security.internet`` is the host. It lets a wide agent fetch each
URL of the corpus, as the kernel does: parse, decide, connect. It prints what came of each, and what the internet's DNS
server was asked, as JSON. A filter that lets something through reaches it here: private addresses answer as well.
"""

import itertools
import json
import subprocess
import sys

import trio

from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.kernel.table import Table
from agentos.permissions.address_judge import judge_address_of
from agentos.permissions.authorizer import AgentTree, PermissionAuthorizer
from agentos.permissions.patterns.base import Names
from agentos.permissions.sets.files import read_set
from agentos.services.http.destination import parse_url
from agentos.services.http.egress import Egress
from agentos.services.http.settings import HttpSettings
from agentos_sdk.errors import CallError, PermissionDenied
from tests.security.ssrf_corpus import ASK, BAD, CORPUS, DENIED, HOST, INSIDE, RECORDS, ROUTER, RULES
from tests.support.rights import Notebook
from tests.support.servers.dns_server import DnsServer, serve_dns
from tests.support.wire import PATIENCE

PORTS = (80, 443, 5432, 8080)
NAMES = Names("/home/ada", None, None, None)
REBOUND = ["93.184.215.14"], ["10.0.0.5"]  # the answers for rebind.test in turn


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


async def greet(stream: trio.SocketStream) -> None:
    """Answer a connection with the address that it was made to."""
    async with stream:
        await stream.send_all(stream.socket.getsockname()[0].encode())


async def listen_everywhere() -> list[trio.SocketListener]:
    """Listeners on all addresses, separate for IPv4 and IPv6."""
    return [
        listener
        for port in PORTS
        for host in ("0.0.0.0", "::")
        for listener in await trio.open_tcp_listeners(port, host=host)
    ]


# -- The internet ------------------------------------------------------------------------------------------------------


async def serve_internet() -> None:
    """Serve on every address until standard input ends, then print which names were asked for."""
    print("made", flush=True)
    sys.stdin.readline()  # the host has moved its end of the cable here
    ip("link", "set", "lo", "up")
    ip("addr", "add", f"{ROUTER}/24", "dev", "veth1")
    ip("addr", "add", "2001:db8:0:1::2/64", "dev", "veth1", "nodad")
    ip("link", "set", "veth1", "up")
    ip("route", "add", "local", "0.0.0.0/0", "dev", "lo")
    ip("-6", "route", "add", "local", "::/0", "dev", "lo", "table", "100")
    ip("-6", "rule", "add", "pref", "40000", "lookup", "100")  # behind the route to the host
    rebound = itertools.cycle(REBOUND)
    dns = DnsServer({**RECORDS, "rebind.test": lambda: next(rebound)})
    listeners = await listen_everywhere()
    async with serve_dns(dns, ROUTER), trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, greet, listeners)
        print(dns.address[1], flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)
        nursery.cancel_scope.cancel()
    print(json.dumps(dns.asked), flush=True)


# -- The host ----------------------------------------------------------------------------------------------------------


def set_up_host(internet: "subprocess.Popen[str]") -> None:
    ip("link", "set", "lo", "up")
    ip("link", "add", "name", "veth0", "type", "veth", "peer", "name", "veth1", "netns", str(internet.pid))
    for address in HOST:
        ip("addr", "add", *((f"{address}/64", "nodad") if ":" in address else (f"{address}/24",)), "dev", "veth0")
    ip("link", "set", "veth0", "up")
    ip("route", "add", "default", "via", ROUTER)
    ip("-6", "route", "add", "default", "via", "2001:db8:0:1::2")


async def fetch(url: str, egress: Egress, caller: Caller, authorizer: PermissionAuthorizer) -> str:
    """What comes of a request: one of the outcomes, or the address that it reached."""
    try:
        destination, _ = parse_url(url, "GET")
    except ValueError:
        return BAD
    decision = authorizer.decide(caller, Right("http", destination))
    if decision.effect != "allow":
        return DENIED if decision.effect == "deny" else ASK
    judge = judge_address_of(authorizer, caller, destination)
    try:
        stream = await egress.connect(caller.id, destination.host, destination.port, judge)
    except PermissionDenied:
        return INSIDE
    except CallError as error:
        return f"not reached: {error}"
    async with stream:
        return (await stream.receive_some(100)).decode()


def fetch_corpus() -> None:
    command = ["unshare", "--net", sys.executable, "-m", "tests.security.internet", "internet"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as internet:
        assert internet.stdin is not None
        assert internet.stdout is not None
        assert internet.stdout.readline() == "made\n"
        set_up_host(internet)
        print(file=internet.stdin, flush=True)
        port = int(internet.stdout.readline())
        found = trio.run(fetch_all, Egress(HttpSettings(resolver=(ROUTER, port))))
        internet.stdin.close()
        print(json.dumps({"found": found, "asked": json.loads(internet.stdout.readline())}))


async def fetch_all(egress: Egress) -> list[str]:
    authorizer = PermissionAuthorizer(AgentTree(lambda *_: False, str, lambda *_: False, lambda *_: False))
    authorizer.add_caller(1, read_set(RULES, "the test's", {}, NAMES), NAMES)
    caller = Caller(1, "agent", "wide", Table(()), authorizer, Notebook())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, greet, await listen_everywhere())  # the host's own services
        found = []
        for url, _ in CORPUS:
            with trio.fail_after(PATIENCE):
                found.append(await fetch(url, egress, caller, authorizer))
        nursery.cancel_scope.cancel()
    return found


if __name__ == "__main__":
    if "internet" in sys.argv:
        trio.run(serve_internet)
    else:
        fetch_corpus()
