"""What an agent could find of others: in the memory that it was forked with, and in places that they had or have."""

import hashlib
import secrets

import pytest

from agentos_sdk import AgentOSClient
from tests.conftest import OwnKernel
from tests.security.hostile import attack, begin, told
from tests.support.kernel import Kernel
from tests.support.wire import PATIENCE
from tests.system.agents import info, up
from tests.system.jails import group_of, need_cgroups

# Looks for what it doesn't know: 24 letters behind a word, by their digest. What it looks for isn't in its memory.
SCAN = """
import hashlib, re
own = os.environ.pop("OWN")
sought = {sought!r}
found, read = set(), 0
memory = open("/proc/self/mem", "rb", buffering=0)
for line in open("/proc/self/maps").read().splitlines():
    start, end = (int(number, 16) for number in line.split()[0].split("-"))
    if "r" not in line.split()[1] or "[v" in line: continue
    for at in range(start, end, 1 << 20):
        try: memory.seek(at); part = memory.read(min(end - at, (1 << 20) + 64))
        except (OSError, OverflowError): continue
        read += len(part)
        for match in re.finditer(rb"canary-([0-9a-f]{{24}})", part):
            found.add(hashlib.sha256(match[1]).hexdigest())
memory.close()
def is_open(fd):
    try: return bool(os.fstat(fd))
    except OSError: return False
say([sorted(name for name, digest in sought.items() if digest in found), read > 1 << 20, [*filter(is_open, range(3, 1024))]])
"""  # noqa: E501


@pytest.mark.parametrize("runtime", ["fast", "exec"])
def test_no_secret_of_the_kernels_or_of_a_former_agents_is_in_an_agents_memory(
    own_kernel: OwnKernel, runtime: str
) -> None:
    whose = ("kernel", "config", "former", "sibling", "own")
    letters = {name: secrets.token_hex(12) for name in whose}
    sought = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in letters.items()}
    canaries = {name: f"canary-{text}" for name, text in letters.items()}
    declared = f"""
[[supervisor.children]]
name = "declared"
command = ["sleep", "1000"]
env = {{ KEY = "{canaries["config"]}" }}
"""
    kernel = own_kernel(declared, {"API_KEY": canaries["kernel"]})
    with kernel.client() as client:
        begin(
            kernel,
            client,
            "former",
            "say([])",
            env={"KEY": canaries["former"]},
            args=[canaries["former"]],
            runtime=runtime,
        )
        told(client, "former")
        client.kill("former", grace=0)
        begin(kernel, client, "sibling", "say([])", env={"KEY": canaries["sibling"]}, runtime=runtime)
        told(client, "sibling")

        code = SCAN.format(sought=sought)
        found, looked, files = attack(kernel, client, "reader", code, env={"OWN": canaries["own"]}, runtime=runtime)

    assert looked
    assert found == ["own"], "the scan finds what is there, and nothing else is"
    assert files == []


LEAVE = """
import errno
token, key = "left-behind", 424242
places = ["/tmp", "/workspace", "/dev/shm"]
for place in places: open(f"{place}/left-behind", "w").write("hello")
tcp = socket.create_server(("127.0.0.1", 5555)); abstract = socket.socket(socket.AF_UNIX); abstract.bind("\\0left-behind"); abstract.listen()
named = socket.socket(socket.AF_UNIX); named.bind("/tmp/named"); named.listen()
libc = ctypes.CDLL(None, use_errno=True)
for make in (lambda: libc.shmget(key, 4096, 0o1666), lambda: libc.msgget(key, 0o1666), lambda: libc.semget(key, 1, 0o1666)):
    assert make() >= 0 or ctypes.get_errno() == errno.ENOSYS  # refused where no control group counts their memory
say([])
"""  # noqa: E501
FIND = """
libc, key, found = ctypes.CDLL(None, use_errno=True), 424242, []
def attempt(what, function):
    try: function()
    except (OSError, LookupError): return
    found.append(what)
def reach(family, address):
    with socket.socket(family) as wire: wire.connect(address)
def have(name, *arguments):
    if getattr(libc, name)(*arguments) < 0: raise OSError
for place in ("/tmp", "/workspace", "/dev/shm"): attempt(place, lambda: open(f"{place}/left-behind"))
for address in (("127.0.0.1", 5555), ("0.0.0.0", 5555), ("127.0.0.2", 5555)):
    attempt(address, lambda: reach(socket.AF_INET, address))
attempt("abstract", lambda: reach(socket.AF_UNIX, "\\0left-behind"))
attempt("named", lambda: reach(socket.AF_UNIX, "/tmp/named"))
attempt("shm", lambda: have("shmget", key, 0, 0))
attempt("msg", lambda: have("msgget", key, 0))
attempt("sem", lambda: have("semget", key, 0, 0))
for pid in range(2, 400):
    if pid not in (os.getpid(), os.getppid()): attempt(pid, lambda: os.kill(pid, 0))
say(found)
"""


def test_two_agents_share_no_place_in_which_to_talk(kernel: Kernel, client: AgentOSClient) -> None:
    begin(kernel, client, "talker", LEAVE)
    told(client, "talker")

    assert attack(kernel, client, "listener", FIND) == []


def test_an_agent_with_a_reused_name_takes_nothing_else_of_its_former_holder(
    kernel: Kernel, client: AgentOSClient
) -> None:
    begin(kernel, client, "named", LEAVE)
    told(client, "named")
    client.kill("named", grace=0)

    assert attack(kernel, client, "named", FIND) == []


def test_no_control_group_is_used_twice(kernel: Kernel, client: AgentOSClient) -> None:
    need_cgroups(kernel)
    eats = "ask(LIST); held = []\nwhile True: held.append(bytearray(1 << 20))"
    begin(kernel, client, "reborn", eats, limits={"memory": "48M"})
    first = client.wait("reborn", timeout=PATIENCE)
    places = []
    for _ in range(2):
        up(client.spawn("reborn", command=["sleep", "1000"], limits={"memory": "48M"}))
        places.append(group_of(info(client, "reborn")["pid"], "memory"))
        used = up(client.inspect("reborn"))["usage"]
        assert used["memory"] < 16 << 20, "what the dead one had counts for nobody"
        client.kill("reborn", grace=0)
        assert "memory" not in client.wait("reborn")["reason"]

    assert "memory" in first["reason"]
    assert places[0] != places[1]
    assert [place for place in places if place.exists()] == []
