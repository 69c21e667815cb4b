"""An agent misuses its channel to the kernel: frames that are none, descriptors, and other agents' names."""

import pytest

from agentos_sdk import AgentOSClient
from tests.security.hostile import attack, begin, told
from tests.support.kernel import Kernel
from tests.system.agents import info, relay, up

MIB = 1 << 20
ABUSES = {
    "a line of a GiB": """
wire = connect()
sent, part = 0, b"x" * MIB
try:
    wire.sendall(frame(SEND, b"", length=1 << 30))
    while sent < 1 << 30: sent += wire.send(part)
except OSError: pass
say([sent < 64 * MIB])
""",
    "a hundred thousand nested lists": """
say([ask(op, b"[" * 100000 + b"]" * 100000)["code"] in ("bad_request", "too_large") for op in (SPAWN, SEND, RECV)]
  + [ask(SEND, b'{"to_name": "x", "message": ' + b'{"a":' * 100000 + b"1" + b"}" * 100001)["success"] is False])
""",
    "frames that never end": """
wires = []
try:
    for number in range(200):
        wires.append(connect()); wires[-1].sendall(frame(SEND, b"x" * number, length=1 * MIB)[: 1 + number])
except OSError: pass
say([len(wires) > 10])
""",
    "replies that nobody reads": """
wires = []
try:
    for _ in range(30):
        wires.append(connect()); wires[-1].settimeout(0.5)
        while True: wires[-1].send(frame(NOOP, b"x" * MIB))
except OSError: pass
say([len(wires) > 0])
""",
    "bytes of all kinds": """
wire = connect()
try:
    for _ in range(200):
        wire.sendall(os.urandom(4096)); wire.close(); wire = connect()
except OSError: pass
say([True])
""",
}


@pytest.mark.usefixtures("any_user")
@pytest.mark.parametrize("abuse", ABUSES)
def test_an_agent_that_misuses_the_protocol_harms_no_other_agent(
    kernel: Kernel, client: AgentOSClient, abuse: str
) -> None:
    relay(kernel, client, "bystander")
    pid, before = info(client, "bystander")["pid"], kernel.rss

    assert all(attack(kernel, client, "abuser", f"MIB = 1 << 20\n{ABUSES[abuse]}"))

    assert kernel.answers()
    assert kernel.rss - before < 64 * MIB
    assert info(client, "bystander")["pid"] == pid
    assert client.kill("abuser", grace=0)


def test_descriptors_that_an_agent_sends_are_not_kept(kernel: Kernel, client: AgentOSClient) -> None:
    sends = """
say([])
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
with connect() as wire:
    read, write = os.pipe()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [write] * 253))]
    for number in range(40):
        data = frame(NOOP, b"with descriptors")
        head = wire.sendmsg([data[:9]], rights)
        wire.sendmsg([data[head:]], rights)
        receive(wire)
    os.close(write)
    os.set_blocking(read, False)
    try: kept = os.read(read, 1) != b""
    except BlockingIOError: kept = True
    print("kept" if kept else "closed", flush=True)
    receive(wire)
"""
    before = kernel.open_files

    begin(kernel, client, "sender", sends)
    said = client.follow_logs("sender", tail=100)
    texts = (line["text"] for page in said for line in page["lines"])
    assert next(text for text in texts if text in ("kept", "closed")) == "closed"
    said.close()

    assert kernel.open_files - before < 20, "its door, pipes, namespaces and connections"


def test_no_agent_speaks_for_another_agent(kernel: Kernel, client: AgentOSClient) -> None:
    victim = relay(kernel, client, "victim")
    ours = up(client.hello())["agent_id"]
    forges = f"""
VICTIM, OPERATOR = {victim}, {ours}
refused = [ask(op, body, VICTIM) for op, body in (
  (KILL, dict(name="victim")), (KILL, dict(id=VICTIM)), (PAUSE, dict(id=VICTIM)), (REGISTER, dict(name="victim")),
  (KILL, dict(id=VICTIM, agent_id=OPERATOR)), (PAUSE, dict(name="victim", caller="operator")))]
with connect() as wire:
    for number in (VICTIM, 0, OPERATOR, 2**32 - 1):
        for body in (dict(to=OPERATOR, message="forged"), dict(to=OPERATOR, message="forged", from_id=VICTIM),
                     dict(to=OPERATOR, message="forged", agent_id=VICTIM, from_name="victim")):
            wire.sendall(frame(SEND, body, number)); receive(wire)
for body in ({{"as": "victim"}}, {{"agent_id": VICTIM}}, {{"name": "victim", "protocol": 1}}):
    with connect() as wire:
        wire.sendall(frame(HELLO, body)); receive(wire)
        wire.sendall(frame(SEND, dict(to=OPERATOR, message="greeted"))); receive(wire)
say([reply.get("killed") or reply.get("success", False) for reply in refused])
"""

    allowed = attack(kernel, client, "forger", forges)

    assert not any(allowed)
    messages = client.recv_messages(100)["messages"]
    assert len(messages) >= 4
    assert {(one["from_id"], one["from_name"]) for one in messages} == {(info(client, "forger")["id"], "forger")}
    assert info(client, "victim")["state"] == "running"


def test_an_agents_socket_leads_to_no_other_identity(kernel: Kernel, client: AgentOSClient) -> None:
    """What is at the socket's path, beside it, and above it."""
    victim = relay(kernel, client, "neighbour")
    tries = f"""
found = []
for path in ("/run/{victim}.sock", "/tmp/{victim}.sock", {kernel.socket!r}, "/run/../run/agentos.sock/../{victim}.sock",
             "\\0agentos", "/proc/1/root/run/agentos.sock", "/proc/1/fd/3", "/proc/1/cwd/{victim}.sock"):
    wire = socket.socket(socket.AF_UNIX)
    try: wire.connect(path)
    except OSError: continue
    wire.sendall(frame(HELLO, {{}})); found.append(json.loads(receive(wire))["name"])
try: os.unlink("/run/agentos.sock"); found.append("unlinked")
except OSError: pass
try: os.rename("/run/agentos.sock", "/tmp/mine"); found.append("renamed")
except OSError: pass
say([name for name in found if name != "nosy"])
"""

    assert attack(kernel, client, "nosy", tries) == []


@pytest.mark.usefixtures("any_user")
def test_an_agent_that_says_goodbye_for_others_ends_only_its_own_connection(
    kernel: Kernel, client: AgentOSClient
) -> None:
    begin(kernel, client, "leaver", "say([1])\nwith connect() as wire: wire.sendall(frame(0xFF)); wire.recv(100)")
    told(client, "leaver")

    assert client.echo("still here") == "still here"
    assert info(client, "leaver")["state"] == "running"
