"""Watchdog and health command: agents that hang are killed and restarted, and no others."""

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos.agents.life.health import MAX_CHECKS
from tests.support.commands import run_agentos
from tests.support.kernel import Kernel, environment, until
from tests.system.agents import in_state, info, known, up
from tests.system.conftest import Declare
from tests.system.lives.test_containers import SLEEPS, child

BEATS = """
import time
from agentos_sdk import AgentOSClient

with AgentOSClient() as me:
    me.hello()
    while True:
        me.noop(b"alive")
        time.sleep(0.1)
"""
HANGS = "import time\nfrom agentos_sdk import AgentOSClient\nAgentOSClient().hello()\ntime.sleep(1000)\n"
WAITS = """
from agentos_sdk import AgentOSClient

with AgentOSClient() as me:
    me.hello()
    while True:
        me.recv_messages(timeout=1000)
"""
READS_NO_MORE = """
import time

from agentos_sdk import AgentOSClient

with AgentOSClient() as me:
    me.hello()
    me.spawn("flood", command=["yes", "x" * 200])
    with me.follow_logs("flood") as pages:
        next(iter(pages))
        time.sleep(1000)
"""
HELLO, BACKOFF = 'ready = "hello"', "backoff = { min = 0.1, max = 0.2 }"
WATCHED = 'watchdog = "1s"'
PATIENTLY = 'watchdog = "4s"'  # for an agent that has to live, also where the machine leaves it without CPU for a while
REASON = "killed: watchdog: no call for 1 s"


def script(place: Path, name: str, text: str) -> str:
    (place / f"{name}.py").write_text(text)
    return f'script = "{place}/{name}.py"'


def check(command: str, **more: object) -> str:
    """The line of a health command that runs each second; ``command`` is a line for the shell."""
    fields = {"command": ["sh", "-c", command], "interval": "1s", **more}
    return "health = { " + ", ".join(f"{name} = {json.dumps(value)}" for name, value in fields.items()) + " }"


@pytest.fixture(scope="module", autouse=True)
def hung_start(kernels: None) -> Iterator[Kernel]:
    """A kernel whose agent never says HELLO; the 30 s that it has for that pass during the other tests."""
    kernel = Kernel(child("mute", SLEEPS, HELLO, WATCHED, "max_restarts = 0"))
    yield kernel
    kernel.clean_up()


def test_a_stopped_process_is_killed_and_restarted(declare: Declare, tmp_path: Path) -> None:
    kernel = declare(child("beats", None, script(tmp_path, "beats", BEATS), HELLO, WATCHED, BACKOFF))
    with kernel.client() as client:
        pid = known(client, "beats")

        os.kill(pid, signal.SIGSTOP)

        kernel.wait_line("beats: unhealthy: watchdog: no call for 1 s")
        until(lambda: info(client, "beats")["restarts"] >= 1, "it is restarted")
        in_state(client, "beats", "running")
        assert client.inspect(name="beats")["end"]["reason"] == REASON
        kinds = [(line["stream"], line["text"]) for line in up(client.logs("beats"))["lines"]]
        assert ("kernel", "unhealthy: watchdog: no call for 1 s") in kinds
        assert ("kernel", f"ended: {REASON}") in kinds


def test_neither_a_wait_in_the_kernel_nor_a_pause_counts(declare: Declare, tmp_path: Path) -> None:
    """The watch goes on meanwhile: an agent that hangs is found several times over, for longer than theirs lasts.

    It is given up after its restarts.
    """
    scripts = {"waits": WAITS, "beats": BEATS, "paused": BEATS}
    agents = [child(name, None, script(tmp_path, name, text), HELLO, PATIENTLY) for name, text in scripts.items()]
    hangs = child("hangs", SLEEPS, WATCHED, BACKOFF, "max_restarts = 4")
    kernel = declare("".join(agents) + hangs)
    with kernel.client() as client:
        up(client.pause("paused"))

        failed = in_state(client, "hangs", "failed")

        assert (failed["restarts"], failed["end"]) == (4, REASON)
        assert {name: (info(client, name)["state"], info(client, name)["restarts"]) for name in scripts} == {
            "waits": ("running", 0),
            "beats": ("running", 0),
            "paused": ("paused", 0),
        }
        up(client.resume("paused"))
        assert client.inspect(name="waits")["health"]["idle"] == 0
        assert client.inspect(name="waits")["health"]["watchdog"] == 4


def test_a_call_that_waits_for_its_agent_to_read_is_no_wait(declare: Declare, tmp_path: Path) -> None:
    lines = (script(tmp_path, "stalls", READS_NO_MORE), HELLO, WATCHED, "max_restarts = 0", 'permissions = "standard"')
    kernel = declare(child("stalls", None, *lines))
    with kernel.client() as client:
        assert in_state(client, "stalls", "failed")["end"] == REASON


def test_time_in_which_the_kernel_itself_stands_still_does_not_count(declare: Declare, tmp_path: Path) -> None:
    kernel = declare(child("patient", None, script(tmp_path, "beats", BEATS), HELLO, PATIENTLY))
    with kernel.client() as client:
        kernel.process.send_signal(signal.SIGSTOP)
        time.sleep(4.5)  # longer than the watchdog's time
        kernel.process.send_signal(signal.SIGCONT)
        assert info(client, "patient")["state"] == "running"
        pid = known(client, "patient")
        os.kill(pid, signal.SIGSTOP)  # it still watches
        kernel.wait_line("patient: unhealthy")
        assert kernel.said.count("patient: unhealthy") == 1


def test_a_failing_check_is_shown_and_then_ends_the_agent(declare: Declare) -> None:
    health = check("echo one; echo no answer on 8080 >&2; exit 3", failures=2)
    kernel = declare(child("web", SLEEPS, health, BACKOFF, "max_restarts = 0"))
    with kernel.client() as client:
        until(lambda: info(client, "web")["health"], "a failed check is shown")
        found = client.inspect(name="web")["health"]
        assert (found["failures"], found["limit"], found["watchdog"]) == (1, 2, None)
        assert found["problem"] == "exit status 3: one / no answer on 8080"

        failed = in_state(client, "web", "failed")

        reason = "health check failed (2 in a row): exit status 3: one / no answer on 8080"
        assert failed["end"] == f"killed: {reason}"
        kernel.wait_line(re.escape(f"web: unhealthy: {reason}"))
        assert failed["health"] is None  # it has none any more


def test_a_check_that_hangs_lacks_its_program_or_is_run_beside_a_jail_fails_and_says_why(
    declare: Declare, tmp_path: Path
) -> None:
    once = (BACKOFF, "max_restarts = 0")
    hangs = check("echo before; trap '' TERM; sleep 1000 & sleep 1000", timeout="300ms", failures=1)
    lacks = 'health = { command = ["nosuchprog"], interval = "1s", failures = 1 }'
    looks = check(f"echo $AGENTOS_AGENT_NAME $PWD > {tmp_path}/checked; exit 1", failures=1)
    kernel = declare(
        child("stuck", SLEEPS, hangs, *once)
        + child("lacks", SLEEPS, lacks, *once)
        + child("free", SLEEPS, looks, 'isolation = "none"', f'cwd = "{tmp_path}"', *once)
    )
    with kernel.client() as client:
        ends = {name: in_state(client, name, "failed")["end"] for name in ("stuck", "lacks", "free")}
        assert ends == {
            "stuck": "killed: health check failed (1 in a row): no end within 0.3 s: before",
            "lacks": "killed: health check failed (1 in a row): nosuchprog: not found in the jail's PATH",
            "free": "killed: health check failed (1 in a row): exit status 1",
        }
        assert not kernel.processes_of_agent(info(client, "stuck")["id"])
    assert (tmp_path / "checked").read_text() == f"free {tmp_path}\n"


def test_one_check_that_succeeds_forgives_those_before(declare: Declare) -> None:
    """It fails, succeeds, fails, and so on."""
    flips = check("if rm ok; then exit 1; else : > ok; fi", failures=2)
    counts = check('echo x >> n; [ "$(wc -l < n)" -gt 3 ] && exit 5; exit 0', failures=1)
    kernel = declare(child("flips", SLEEPS, flips) + child("counts", SLEEPS, counts, "max_restarts = 0"))
    with kernel.client() as client:
        assert in_state(client, "counts", "failed")["end"] == "killed: health check failed (1 in a row): exit status 5"
        assert (info(client, "flips")["state"], info(client, "flips")["restarts"]) == ("running", 0)


def test_a_paused_agent_is_not_checked(declare: Declare) -> None:
    """The other one is checked and given up meanwhile, twice over."""
    twice = check("exit 1", failures=1)
    kernel = declare(
        child("rests", SLEEPS, check("sleep 0.5; exit 1", failures=1))
        + child("fails", SLEEPS, twice, BACKOFF, "max_restarts = 1")
    )
    with kernel.client() as client:
        up(client.pause("rests"))
        in_state(client, "fails", "failed")
        assert (info(client, "rests")["state"], info(client, "rests")["restarts"]) == ("paused", 0)
        assert client.inspect(name="rests")["health"]["failures"] == 0
        up(client.resume("rests"))
        kernel.wait_line("rests: unhealthy")


def test_few_checks_run_at_once(declare: Declare) -> None:
    """An agent that begins after the others and is given up by its watchdog says that each of them was due."""
    names = [f"a{number}" for number in range(MAX_CHECKS + 2)]
    waits = check("exec sleep 7301", timeout="5m")
    last = child("last", SLEEPS, 'watchdog = "2s"', "max_restarts = 0", f"after = {json.dumps(names)}")
    kernel = declare("".join(child(name, SLEEPS, waits, 'isolation = "none"') for name in names) + last)
    with kernel.client() as client:
        in_state(client, "last", "failed")

        assert sum(commandline(pid) == "sleep\0007301\0" for pid in kernel.processes()) == MAX_CHECKS


def printed(kernel: Kernel, *arguments: str) -> str:
    done = run_agentos([*arguments, "--socket", kernel.socket], kernel.place, environment(kernel.place))
    assert done.returncode == 0, done.stderr
    return done.stdout


def commandline(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def test_ps_tree_and_inspect_show_it(declare: Declare) -> None:
    health = check("echo no answer; exit 1", failures=90)
    kernel = declare(child("web", SLEEPS, health, 'watchdog = "1h"'))
    with kernel.client() as client:
        until(lambda: info(client, "web")["health"], "a check has failed")

    assert re.search(r"^web: \d of 90 checks in a row failed: exit status 1: no answer$", printed(kernel, "ps"), re.M)
    assert re.search(r"web  running pid \d+, \d failed checks?, permanent", printed(kernel, "tree"))
    shown = printed(kernel, "inspect", "web")
    assert re.search(r"^watchdog +no call for \d+s of at most 1h$", shown, re.M)
    assert re.search(r"^health +failed, \d of 90 in a row at [\d:]{8}: exit status 1: no", shown, re.M)


def test_a_hung_start_is_ended_by_the_time_for_hello_and_not_by_the_watchdog(hung_start: Kernel) -> None:
    hung_start.wait_ready()
    with hung_start.client() as client:
        assert "it didn't say HELLO within 30 s" in in_state(client, "mute", "failed")["end"]
    hung_start.stop()
    assert "unhealthy" not in hung_start.said
