"""``python -m demos.filtered_network``: curl and git in a jail reach the host that a rule names, and no other."""

import contextlib
import functools
import http.server
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from ipaddress import IPv4Address
from pathlib import Path

import click

from agentos.gateways.http_proxy.dns_message import Question, parse_question
from agentos_sdk import AgentOSClient
from demos import stage
from demos.stage import notice, say

CONFIG = '[http]\nresolver = "127.0.0.1:{dns}"\n'


class Files(http.server.SimpleHTTPRequestHandler):
    """Serves a directory without a word."""

    def log_message(self, *_: object) -> None:
        pass


def filtered_network() -> None:
    stage.title("A filtered network")
    say(
        "An agent's jail has no network but the kernel's proxy. curl and git know nothing of AgentOS. The agent may "
        "reach code.demo, a server of this demo on loopback; its name is known to a DNS server of this demo alone."
    )
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aos-demo-")))
        port = stack.enter_context(serve_files(place / "www"))
        dns, asked = stack.enter_context(serve_names("code.demo"))
        config = place / "agentos.toml"
        config.write_text(CONFIG.format(dns=dns))
        running = stack.enter_context(stage.kernel(config))
        client = stack.enter_context(AgentOSClient(running.socket))
        spawned = client.spawn("builder", command=["sleep", "1000"], network="filtered", permissions=rules(port, True))
        if spawned.get("code") == "isolation_unavailable":
            raise stage.DemoError(f"THIS HOST CAN'T ISOLATE, and nothing is started without it.\n{spawned['error']}")
        stage.check(spawned["success"], "the agent starts")

        stage.heading("What a rule names is reached")
        url = f"http://code.demo:{port}"
        stage.check("hello" in run(client, f"curl -s {url}/hello.txt"), "curl gets the file")
        said = run(client, f"git clone -q {url}/repo.git && cat repo/README")
        stage.check("cloned" in said, "git clones the repository")
        say("Also by a program that ignores proxies: the name has an address of its own in the jail.")
        stage.check("hello" in run(client, f"curl -s --noproxy '*' {url}/hello.txt"), "it is reached without a proxy")

        stage.heading("Nothing else is")
        stage.check("no rule" in run(client, "curl -s http://example.com/"), "another host is refused")
        stage.check("403" in run(client, "git clone -q https://example.com/other.git"), "a tunnel is refused")
        stage.check("resolve" in run(client, "curl -sS --noproxy '*' https://example.com/"), "its name doesn't exist")
        stage.check("connect" in run(client, "curl -sS --noproxy '*' http://192.0.2.1/"), "no address is reached")
        stage.check(set(asked) == {"code.demo"}, "no other name is looked up")
        notice("The DNS server was asked for code.demo and for nothing else: refused names don't leave the host.")

        stage.heading("Rules change while it runs")
        stage.check(
            client.set_permissions(agent_id=spawned["id"], permissions=rules(port, False))["success"], "they change"
        )
        stage.check("no rule" in run(client, f"curl -s {url}/hello.txt"), "what was reached is refused now")

        stage.heading("What is written down")
        state = Path(running.socket).parent / "state"
        words = ["audit", "-n", "6", "builder", "--state-dir", str(state)]
        shown = subprocess.run([sys.executable, "-P", "-m", "agentos", *words], capture_output=True, text=True)
        stage.check(shown.returncode == 0, "the audit log is read")
        click.echo(f"$ agentos {' '.join(words[:4])}\n{shown.stdout}", nl=False)
        running.stop()


def rules(port: int, granted: bool) -> dict[str, object]:
    """The address has to be granted by itself, for it is the host's loopback."""
    domains = [f"code.demo:{port}", f"127.0.0.1:{port}"] if granted else []
    return {"level": "sandboxed", **({"allow": {"domains": domains}} if domains else {})}


def run(client: AgentOSClient, line: str) -> str:
    """Run a shell line in the jail and show it; what it printed."""
    click.secho(f"builder$ {line}", bold=True)
    reply = client.exec(f"cd /workspace; exec 2>&1; {line}", name="builder", timeout=60)
    stage.check("stdout" in reply, "the command runs")
    click.echo(stage.fill(reply["stdout"].strip(), "    ", "    "))
    return str(reply["stdout"])


@contextlib.contextmanager
def serve_files(directory: Path) -> Iterator[int]:
    """A file and a repository on loopback; the port."""
    work = directory / "work"
    work.mkdir(parents=True)
    (directory / "hello.txt").write_text("hello\n")
    (work / "README").write_text("cloned\n")
    git = ["git", "-c", "user.name=demo", "-c", "user.email=demo@demo", "-C", str(work)]
    clone = ["clone", "-q", "--bare", ".", "../repo.git"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"], clone):
        subprocess.run([*git, *words], check=True, capture_output=True)
    subprocess.run(["git", "-C", str(directory / "repo.git"), "update-server-info"], check=True)
    handler = functools.partial(Files, directory=str(directory))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, in_thread(server.serve_forever):
        yield server.server_address[1]
        server.shutdown()


@contextlib.contextmanager
def serve_names(name: str) -> Iterator[tuple[int, list[str]]]:
    """A DNS server that knows one name; its port, and the names that it was asked for."""
    asked: list[str] = []

    def serve() -> None:
        while message := udp.recvfrom(512):
            data, client = message
            question = parse_question(data)
            if not isinstance(question, Question):
                return
            asked.append(question.name)
            known = question.name == name
            udp.sendto(question.answer(IPv4Address("127.0.0.1"), 0) if known else question.deny(), client)

    with socket.socket(type=socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", 0))
        with in_thread(serve):
            yield udp.getsockname()[1], asked
            udp.sendto(b"", udp.getsockname())  # no question: the server ends


@contextlib.contextmanager
def in_thread(function: object) -> Iterator[None]:
    thread = threading.Thread(target=function, daemon=True)  # type: ignore[arg-type]
    thread.start()
    yield
    thread.join()


stage.run_demo(filtered_network)
