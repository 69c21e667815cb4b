"""An agent writes: more than anybody can hold, and what a terminal would obey."""

import time

import pytest

from agentos.agents.life.output_rate import BYTES_PER_SECOND, LINE_COST_BYTES
from agentos_sdk import AgentOSClient
from tests.security.hostile import begin, told
from tests.support.commands import run_agentos
from tests.support.kernel import Kernel, environment, until
from tests.system.agents import has_full_log, lines, write

pytestmark = pytest.mark.usefixtures("any_user")

# A title, a cleared screen, colours, an 8-bit CSI, text from right to left, a bell, a line that overwrites itself.
EVIL = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x9b31m \u202egnp.exe \x08\x08\rroot"
OBEYED = set("\x1b\x07\x08\r\x9b\u202e\x00")


def test_ten_gib_of_output_fill_nothing_and_slow_no_other_caller(kernel: Kernel, client: AgentOSClient) -> None:
    begin(kernel, client, "flood", "part = b'x' * 60 + b'\\n'\nfor _ in range(10 << 14): os.write(1, part * 1050)")
    before = kernel.rss

    until(lambda: has_full_log(client, "flood"), "more has come than is kept")
    for number in range(100):
        assert client.echo(str(number)) == str(number)
    kept = client.logs("flood", tail=2000)["lines"]

    assert kernel.rss - before < 32 << 20
    assert sum(len(line["text"]) for line in kept) <= 1 << 20
    assert client.kill("flood", grace=0)


def test_five_floods_take_no_more_of_the_kernels_time_than_one(kernel: Kernel, client: AgentOSClient) -> None:
    width, names = 60, [f"flood-{number}" for number in range(5)]
    alone = BYTES_PER_SECOND / (width + 1 + LINE_COST_BYTES)  # lines per second, of which each has its number in it

    began = time.monotonic()
    for name in names:
        begin(kernel, client, name, f"for n in range(1 << 40): os.write(1, b'%0{width}d\\n' % n)")
    until(lambda: all(has_full_log(client, name) for name in names), "each has written more than is kept")
    read = sum(int(lines(client, name, "stdout")[-1]) for name in names)

    assert read < 2 * alone * (time.monotonic() - began)


def _agentos(kernel: Kernel, *arguments: str) -> str:
    env = {**environment(kernel.place), "AGENTOS_SOCKET": kernel.socket}
    done = run_agentos(arguments, kernel.place, env)
    return done.stdout + done.stderr


def test_no_terminal_obeys_what_an_agent_writes(kernel: Kernel, client: AgentOSClient) -> None:
    code = f"""
evil = {EVIL!r}
for stream in (sys.stdout, sys.stderr): print(evil, "written", file=stream, flush=True)
ctypes.CDLL(None).prctl(15, evil.encode()[:15], 0, 0, 0)
child = ask(SPAWN, dict(name="child", command=["sh", "-c", "sleep 1000", evil], args=[evil], env={{"EVIL": evil}}))
bad = ask(SPAWN, dict(name=evil, command=["sleep", "1000"]))
fails = ["/bin/sh", "-c", "printf '%s' \\"$0\\" >&2; exit 1", evil]
failed = ask(SPAWN, dict(name="failed", command=fails, ready="hello"))
missing = ask(SPAWN, dict(name="missing", command=[evil]))
say([child["success"], bad["success"], failed["success"], missing["success"]])
"""

    begin(kernel, client, "painter", code)

    assert told(client, "painter") == [True, False, False, False]
    begun = kernel.wait_line("painter.*written")
    shown = [begun, *(_agentos(kernel, *command) for command in (["ps"], ["tree"], ["logs", "painter"]))]
    shown += [_agentos(kernel, "logs", "failed"), _agentos(kernel, "inspect", "child")]
    assert [OBEYED & set(text) for text in shown] == [set()] * len(shown)
    assert "\\x1b" in shown[0]
    assert "owned" in shown[3], "it is shown, and not left out"


@pytest.mark.parametrize("ending", ["sys.exit(evil)", "raise ValueError(evil)"])
def test_no_terminal_obeys_why_an_agent_did_not_start(kernel: Kernel, client: AgentOSClient, ending: str) -> None:
    script = write(kernel, "fails.py", f"import sys\nevil = {EVIL!r}\n{ending}\n")

    said = _agentos(kernel, "spawn", "fails", "--ready", "hello", script)

    assert "owned" in said
    assert not OBEYED & set(said)


def test_what_an_agent_logs_is_one_line_of_its_own(kernel: Kernel, client: AgentOSClient) -> None:
    """No line of the console looks like the kernel's, or like another agent's, that isn't."""
    begin(
        kernel,
        client,
        "liar",
        "print('a\\n12:00:00   kernel | ready\\r\\v\\f\\x85\\u2028  root | hello', flush=True); say([])",
    )
    told(client, "liar")

    kernel.wait_line(r"liar \| \[\]")
    for line in kernel.said.splitlines():
        assert "root | hello" not in line or "liar |" in line
        assert "12:00:00" not in line or "liar |" in line
    assert lines(client, "liar", "stdout")[0] == "a"
