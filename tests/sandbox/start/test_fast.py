"""A script that is run without an exec: the walls are those of every program, and nothing of another's is in it."""
# A file in /proc or /tmp keeps nobody waiting here.
# ruff: file-ignore[ASYNC240]

import errno
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import trio

from agentos.sandbox import steps as s
from agentos.sandbox.errors import StepFailed
from agentos.sandbox.filters.profile import OneOf, Refusal, Rule
from agentos.sandbox.plan import plan_sandbox
from agentos.sandbox.policy import BadPolicy, Interpreter, Policy, Program
from agentos.sandbox.report import probe, walls
from agentos.sandbox.start.spawner import Spawner
from agentos.sandbox.status import Status
from agentos.sandbox.steps import Step
from tests.sandbox import jail
from tests.sandbox.jail import PYTHON, SDK, Belongings, a_plan, kill, line, outer, run, zygote_closes
from tests.sandbox.test_failing_steps import NO, PR_SET_DUMPABLE, Broken, broken
from tests.support.runs.rounds import rounds
from tests.support.wire import PATIENCE

ROOT = str(Path(s.__file__).resolve().parents[2])  # what the zygote imports our package from
FOREVER = "import time; print('here', flush=True); time.sleep(600)"
_FILES: list[Path] = []


@pytest.fixture(scope="module", autouse=True)
def directory() -> Iterator[Path]:
    """Where everybody can read: a sandbox's user with root is nobody that pytest's directories are open to."""
    with TemporaryDirectory(prefix="aos-", dir="/tmp") as place:
        os.chmod(place, 0o755)
        _FILES[:] = [Path(place)]
        yield Path(place)


def fast(text: str, /, *arguments: str, env: dict[str, str] | None = None, **policy: Any) -> tuple[Step, ...]:
    """A plan that runs this text as a script."""
    file = _FILES[0] / "main.py"
    file.write_text(text)
    given = {"interpreter": PYTHON, "sdk": SDK, "script": str(file), **policy}
    program = Program(("/agent/main.py", *arguments), env or {}, fast=True)
    return plan_sandbox(Policy(**given), program, probe.read_host(), outer())


async def test_a_script_runs_as_main_with_its_arguments_and_its_status_comes_back(spawner: Spawner) -> None:
    code = "import __main__, sys; print(__name__, __file__, sys.argv, vars(__main__) is globals()); sys.exit(3)"

    ended = await run(spawner, fast(code, "one", "-x"))

    assert ended == jail.Ended(Status(3, None), "__main__ /agent/main.py ['/agent/main.py', 'one', '-x'] True\n", "")


@pytest.mark.parametrize(
    ("code", "status", "err"),
    [
        ("", Status(0, None), ""),
        ("import sys; sys.exit()", Status(0, None), ""),
        ("import sys; sys.exit('so it ends')", Status(1, None), "so it ends\n"),
        ("exit(4)", Status(4, None), ""),
        ("import os; os._exit(5)", Status(5, None), ""),
        ("import os; os.abort()", Status(None, signal.SIGABRT), ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", Status(None, signal.SIGKILL), ""),
    ],
)
async def test_however_it_ends_is_told(spawner: Spawner, code: str, status: Status, err: str) -> None:
    assert await run(spawner, fast(code)) == jail.Ended(status, "", err)


async def test_an_uncaught_error_is_shown_from_the_script_on(spawner: Spawner) -> None:
    ended = await run(spawner, fast("import json\ndef f():\n    json.loads('{')\nf()\n"))

    lines = ended.err.splitlines()
    assert ended.status == Status(1, None)
    assert lines[:5] == [
        "Traceback (most recent call last):",
        '  File "/agent/main.py", line 4, in <module>',
        "    f()",
        '  File "/agent/main.py", line 3, in f',
        "    json.loads('{')",
    ]
    assert lines[-1].startswith("json.decoder.JSONDecodeError: ")


async def test_what_is_no_python_is_shown_as_an_interpreter_shows_it(spawner: Spawner) -> None:
    ended = await run(spawner, fast("x = = 1\n"))

    assert ended.status == Status(1, None)
    assert ended.err.splitlines()[0] == '  File "/agent/main.py", line 1'
    assert ended.err.splitlines()[-1] == "SyntaxError: invalid syntax"


async def test_an_interrupt_is_an_exception_and_then_the_end_by_that_signal(spawner: Spawner) -> None:
    sandbox = await spawner.spawn(fast(FOREVER))
    assert await line(sandbox) == "here\n"

    sandbox.signal(signal.SIGINT)
    ended = await jail.ended(sandbox)

    assert ended.status == Status(None, signal.SIGINT)
    assert ended.err.splitlines()[-1] == "KeyboardInterrupt"


async def test_what_is_due_at_the_end_is_done(spawner: Spawner) -> None:
    code = """
import atexit, sys, threading, time
atexit.register(print, 'atexit')
threading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()
sys.stdout.write('no newline, ')
"""
    assert (await run(spawner, fast(code))).out == "no newline, thread\natexit\n"


@pytest.mark.parametrize("end", ["", "sys.exit(0)"])
async def test_its_objects_end_and_its_files_are_written_as_with_exec(spawner: Spawner, end: str) -> None:
    code = f"""
import atexit, os, signal, sys
__file__ = '/agent/main.py'
class Noisy:
    def __init__(self, name): self.name = name
    def __del__(self): print('end of', self.name, os.path.basename(__file__))
noisy, cycle = Noisy('one'), Noisy('another')
cycle.cycle = cycle
kept = open('kept', 'w')
kept.write('text')
signal.signal(signal.SIGTERM, lambda *_: kept.write('more'))
if os.fork():
    os.wait()
    print(open('kept').read(), flush=True)
    os._exit(0)
atexit.register(lambda: kept.write(', and text at the end'))
{end}
"""
    exec_ed = a_plan(sys.executable, "-I", "-S", "-c", code)

    ended = await run(spawner, fast(code))

    assert ended.out.splitlines() == ["end of one main.py", "end of another main.py", "text, and text at the end"]
    assert ended == await run(spawner, exec_ed)


async def test_a_file_that_a_thread_uses_is_written_at_the_end(spawner: Spawner) -> None:
    code = """
import os, threading, time
def use(file): time.sleep(600)
if os.fork():
    os.wait()
    print(open('kept').read())
else:
    kept = open('kept', 'w')
    kept.write('text')
    threading.Thread(target=use, args=[kept], daemon=True).start()
"""
    assert (await run(spawner, fast(code))).out == "text\n"


async def test_an_end_of_which_the_output_is_lost_fails_as_with_exec(spawner: Spawner) -> None:
    code = "import os, sys; sys.stdout.write('text'); os.close(1)"

    ended, beside = [await run(spawner, plan) for plan in (fast(code), a_plan(sys.executable, "-I", "-S", "-c", code))]

    assert ended.status == beside.status == Status(120, None)
    assert ended.err.splitlines()[-1] == beside.err.splitlines()[-1] == "OSError: [Errno 9] Bad file descriptor"


async def test_each_line_is_out_before_the_next_begins(spawner: Spawner) -> None:
    code = "import sys, time; print('first'); print('second', file=sys.stderr); time.sleep(600)"
    sandbox = await spawner.spawn(fast(code))

    assert await line(sandbox) == "first\n"
    await trio.lowlevel.wait_readable(sandbox.stderr)
    assert os.read(sandbox.stderr, 100) == b"second\n"
    await kill(sandbox)


async def test_its_environment_is_what_the_plan_says_as_with_exec(spawner: Spawner) -> None:
    code = "import os, subprocess; print(dict(sorted(os.environ.items()))); subprocess.run(['/usr/bin/env'])"
    python = "import os; print(dict(sorted(os.environ.items())))"

    ended = await run(spawner, fast(code, env={"MINE": "yes"}))
    beside = await run(spawner, a_plan(sys.executable, "-I", "-S", "-c", python, env={"MINE": "yes", "LC_CTYPE": "C"}))

    ours, *inherited = ended.out.splitlines()
    assert eval(ours) == {name: value for name, value in eval(beside.out).items() if name != "LC_CTYPE"}
    assert "MINE=yes" in inherited


async def test_it_imports_from_its_directory_the_sdk_the_library_and_the_packages(spawner: Spawner) -> None:
    code = """
import sys
import beside, agentos, agentos_sdk.blocking, agentos_sdk.client, trio, uuid, sqlite3, ssl, random
print(sys.path[:2], beside.__file__, agentos.__file__, agentos.AgentOSClient is agentos_sdk.blocking.AgentOSClient)
print(agentos_sdk.__file__, agentos_sdk.client.__file__, agentos_sdk.blocking.open_connection.__code__.co_filename)
"""
    with TemporaryDirectory(prefix="aos-", dir="/tmp") as place:
        os.chmod(place, 0o755)
        Path(place, "beside.py").touch()
        Path(place, "main.py").write_text(code)

        ended = await run(spawner, fast("", script=None, code=place))

    assert (ended.err, ended.out.splitlines()) == (
        "",
        [
            "['/agent', '/sdk'] /agent/beside.py /sdk/agentos.py True",
            "/sdk/agentos_sdk/__init__.py /sdk/agentos_sdk/client.py /sdk/agentos_sdk/blocking.py",
        ],
    )


async def test_the_sdk_speaks_to_the_kernels_socket(spawner: Spawner) -> None:
    code = "from agentos_sdk.blocking import AgentOSClient; print(AgentOSClient().connect())"
    with TemporaryDirectory(prefix="aos-", dir="/tmp") as place, socket.socket(socket.AF_UNIX) as listener:
        os.chmod(place, 0o755)
        path = f"{place}/s"
        listener.bind(path)
        os.chmod(path, 0o666)
        listener.listen()

        assert (await run(spawner, fast(code, socket=path))).out == "True\n"


async def test_nothing_of_the_zygotes_is_left_in_it(spawner: Spawner) -> None:
    code = """
import gc, os, signal, sys
fds = [int(fd) for fd in os.listdir('/proc/self/fd')]
print(sorted(fd for fd in fds if os.path.exists(f'/proc/self/fd/{fd}')), os.readlink('/proc/self/fd/0'))
print([name for name in sys.modules if name.split('.')[0] == 'agentos'], ROOT in sys.path)
print(repr(open('/proc/self/environ').read()), gc.isenabled(), sys.excepthook.__module__ != '__main__')
frame, names = sys._getframe(), set()
while frame := frame.f_back:
    names |= frame.f_locals.keys()
print('steps' in names, 'channel' in names, 'control' in names)
"""
    ended = await run(spawner, fast(f"ROOT = {ROOT!r}\n{code}"))

    assert ended.out.splitlines() == ["[0, 1, 2] /dev/null", "[] False", "'' True True", "False False False"]


async def test_signals_are_as_an_interpreter_finds_them(spawner: Spawner) -> None:
    code = """
import os, signal
print(*(row for row in open('/proc/self/status') if row[:4] in ('SigB', 'SigI', 'SigC')))
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, os.getppid(), os.getsid(0) == os.getpid())
"""
    python = "\n".join(code.splitlines()[:3])

    ended = await run(spawner, fast(code))
    beside = await run(spawner, a_plan(sys.executable, "-I", "-S", "-c", python))

    assert ended.out == beside.out + "True 1 True\n"


async def test_the_walls_are_those_of_an_execed_program(spawner: Spawner) -> None:
    def without_numbers(steps: tuple[Step, ...], observed: walls.Observed) -> str:
        layers = walls.isolation_layers(steps, observed)
        return re.sub(r"\[\d+\]|Uid [\d ]+", "-", str(layers))

    script = fast(FOREVER)
    program = a_plan(sys.executable, "-I", "-S", "-c", FOREVER)
    one, other = await spawner.spawn(script), await spawner.spawn(program)

    assert without_numbers(script, one.observed) == without_numbers(program, other.observed)
    limits = [Path(f"/proc/{sandbox.program}/limits").read_text() for sandbox in (one, other)]
    assert limits[0] == limits[1]
    fields = ("NoNewPrivs", "Seccomp", "Seccomp_filters", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "Groups")
    for field in fields:
        assert one.observed.status[field] == other.observed.status[field]
    await kill(one)
    await kill(other)


async def test_it_is_called_in_proc_what_it_is_as_soon_as_it_runs(spawner: Spawner) -> None:
    sandbox = await spawner.spawn(fast(FOREVER, "an-argument"))

    place = Path(f"/proc/{sandbox.program}")
    assert place.joinpath("comm").read_text() == "main.py\n"
    assert place.joinpath("cmdline").read_bytes().rstrip(b"\0").split(b"\0") == [
        b"python3",
        b"/agent/main.py",
        b"an-argument",
    ]
    await kill(sandbox)


def memory_of(pid: int) -> bytes:
    """All that can be read of a process's memory."""
    parts = []
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as mem:
        for row in Path(f"/proc/{pid}/maps").read_text().splitlines():
            area, rights, *_ = row.split()
            if rights.startswith("r") and not row.endswith(("[vvar]", "[vsyscall]", "[vvar_vclock]")):
                begin, end = (int(number, 16) for number in area.split("-"))
                mem.seek(begin)
                parts.append(mem.read(end - begin))
    return b"".join(parts)


async def test_nothing_of_another_agents_is_in_its_memory(spawner: Spawner) -> None:
    """Neither of one that runs nor of one that has ended, in whatever part of a plan that only it may know."""
    others = [
        fast(FOREVER, "argument-of-a-fast-one", env={"TOKEN": "token-of-a-fast-one"}),
        a_plan("/bin/sleep", "600", env={"TOKEN": "token-of-an-execed-one"}),
        a_plan("/bin/sleep", "601", env={"TOKEN": "token-of-an-ended-one"}),
    ]
    running = [await spawner.spawn(steps) for steps in others]
    await kill(running.pop())
    sandbox = await spawner.spawn(fast(FOREVER, env={"TOKEN": "token-of-its-own"}))
    await line(sandbox)

    found = memory_of(sandbox.program)
    zygotes = memory_of(spawner.zygote.pid)

    assert b"token-of-its-own" in found
    for marker in (b"-of-a-fast-one", b"-of-an-execed-one", b"-of-an-ended-one"):
        assert marker not in found
        assert marker not in zygotes
    assert b"token-of-its-own" not in zygotes
    for one in (sandbox, *running):
        await kill(one)


async def test_no_two_draw_the_same_numbers(spawner: Spawner) -> None:
    code = "import random; print(random.random())"

    assert (await run(spawner, fast(code))).out != (await run(spawner, fast(code))).out


async def test_sigterm_can_be_handled_and_ends_what_doesnt(spawner: Spawner) -> None:
    code = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); " + FOREVER
    handling, not_handling = await spawner.spawn(fast(code)), await spawner.spawn(fast(FOREVER))
    for sandbox in (handling, not_handling):
        await line(sandbox)
        sandbox.signal(signal.SIGTERM)

    assert (await jail.ended(handling)).status == Status(7, None)
    assert (await jail.ended(not_handling)).status == Status(None, signal.SIGTERM)


async def test_kill_ends_all_that_it_started(spawner: Spawner) -> None:
    code = "import os, time\nif os.fork() == 0: os.setsid(); os.fork()\nos.write(1, b'+'); time.sleep(600)"
    sandbox = await spawner.spawn(fast(code))
    seen = ""
    while seen != "+++":
        seen += await line(sandbox)

    with trio.fail_after(PATIENCE):
        await sandbox.kill()
        assert (await jail.ended(sandbox)).status == Status(None, signal.SIGKILL)


async def test_a_script_that_isnt_there_is_a_clear_error(spawner: Spawner) -> None:
    before = Belongings.now()
    with TemporaryDirectory(prefix="aos-", dir="/tmp") as place:
        os.chmod(place, 0o755)

        with pytest.raises(StepFailed, match=r"RunScript /agent/main.py: /agent/main.py: No such file or directory"):
            await spawner.spawn(fast("", script=None, code=place))

    assert Belongings.now() == before


@pytest.mark.parametrize(
    "calls",
    [
        {"setsid": NO},
        {"dup2": NO, "dup3": NO},
        {"chdir": NO},
        {"prctl": (Refusal(errno.EPERM, (OneOf(0, (PR_SET_DUMPABLE,)), OneOf(1, (1,)))),)},  # to be so; PID 1 isn't
    ],
    ids=lambda calls: next(iter(calls)),
)
async def test_what_fails_on_the_way_to_the_script_is_named_and_leaves_nothing(
    spawner: Spawner, calls: dict[str, Rule]
) -> None:
    with TemporaryDirectory(prefix="aos-", dir="/tmp") as place:
        os.chmod(place, 0o777)
        steps = fast("open('ran', 'w')", workspace=place)
        before = Belongings.now()

        with pytest.raises(StepFailed, match=r"RunScript /agent/main.py: .*Operation not permitted"):
            await spawner.spawn(broken(steps, Broken(s.RunScript, calls)))

        assert Belongings.now() == before
        assert os.listdir(place) == []


@pytest.mark.parametrize(
    ("path", "policy", "why"),
    [
        ("/agent/other.py", {"script": "/x/main.py"}, "is not the script"),
        ("/bin/sh", {"script": "/x/main.py"}, "is not the script"),
        ("/agent/../bin/sh", {"code": "/x"}, "is not in /agent"),
        ("/workspace/main.py", {"code": "/x"}, "is not in /agent"),
        ("/agent/main.py", {}, "is not the script"),
        ("/agent/main.py", {"script": "/x/main.py", "interpreter": None}, "the interpreter is the kernel's"),
        (
            "/agent/main.py",
            {"script": "/x/main.py", "interpreter": Interpreter("/x/python", "/x", "/x")},
            "the interpreter is the kernel's",
        ),
    ],
)
def test_only_a_script_of_the_agents_is_run_and_only_by_the_kernels_interpreter(
    path: str, policy: dict[str, Any], why: str
) -> None:
    with pytest.raises(BadPolicy, match=why):
        plan_sandbox(
            Policy(**{"interpreter": PYTHON, **policy}), Program((path,), fast=True), probe.read_host(), outer()
        )


async def test_many_of_them_leave_nothing(spawner: Spawner) -> None:
    steps = fast(FOREVER)
    await kill(await spawner.spawn(steps))
    before, zygotes = Belongings.now(), len(os.listdir(f"/proc/{spawner.zygote.pid}/fd"))

    for _ in range(rounds(5)):
        await kill(await spawner.spawn(steps))

    assert Belongings.now() == before
    await zygote_closes(spawner, zygotes)
