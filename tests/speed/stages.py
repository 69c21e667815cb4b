"""Where the time of a SPAWN, READ or EXEC goes: ``python -m tests.speed.stages [spawn|read|exec]`` (``make stages``).

A kernel runs in a process in which the functions of :data:`STAGES` are wrapped: each notes when it begins and when it
ends, by CLOCK_MONOTONIC, which all processes share. So the kernel itself has no code for this. A client makes the calls
one after the other. A stage lasts from the point of the stage before it to its own point, the first one from the moment
when the client sends. Stages without a name are the unexplained rest.
"""

import argparse
import importlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from inspect import iscoroutinefunction
from operator import itemgetter
from pathlib import Path
from statistics import median
from time import perf_counter_ns, sleep
from typing import Any

from attrs import frozen

from tests.speed.caller import Caller
from tests.speed.place import config
from tests.speed.processes import MeasurementError, Server, serving
from tests.speed.results import lined_up
from tests.speed.starts.jails import FAST, REST, SPAWN, WAIT

READ, WRITE, EXEC = 0x02, 0x03, 0x04
WARM = 5  # calls that aren't counted
CALLS = {"read": 300, "spawn": 40, "exec": 60}
READER = {"name": "reader", "command": ["sleep", "100000"]}

Event = tuple[str, str, int]  # function, "begin" or "end", time in ns


@frozen
class Stage:
    """A part of a call that ends when ``function`` (``module:name``) begins or ends."""

    name: str
    function: str
    point: str = "end"


TAKE = "agentos_sdk.frames:Frames.take"
DECODE = "agentos.kernel.wire.request_body:Reader.read"
REQUIRE = "agentos.kernel.steps:require"
LIMITER = "agentos.syscalls.files.files:run_in_thread"
RESOLVE = "agentos.services.files.resolve:resolve_file"
ENCODE = "agentos.syscalls.files.files:encode_content"
SPEC = "agentos.syscalls.agents.spawn:Spawning._prepare"
INTEND = "agentos.services.audit.log:Audit.intend"
JAIL = "agentos.agents.jail.factory:Jails._prepare"
LAUNCH = "agentos.sandbox.start.spawner:Spawner._launch"
WALK = "agentos.sandbox.start.handshake:wait_confined"
EXECUTE = "agentos.sandbox.start.handshake:wait_exec"
READY = "agentos.agents.life.life:LifeRunner._wait_until_ready"
ACT = "agentos.syscalls.agents.spawn:Spawning._act"
GROUP = "agentos.sandbox.cgroups.lifetime:create"
DESCENT = "agentos.sandbox.start.handshake:receive_descendant"
END = "agentos.agents.commands.run:CommandRunner._read_until_end"
REMOVE = "agentos.sandbox.cgroups.lifetime:remove"

STAGES = {
    "read": (
        Stage("send, receive and decode the frame", TAKE),
        Stage("watch for a hang-up", DECODE, "begin"),
        Stage("decode the body", DECODE),
        Stage("prepare: in the loop", LIMITER, "begin"),
        Stage("prepare: wait for a thread", RESOLVE, "begin"),
        Stage("prepare: resolve and read, in the thread", RESOLVE),
        Stage("prepare: back to the loop", LIMITER),
        Stage("", REQUIRE, "begin"),
        Stage("require", REQUIRE),
        Stage("", ENCODE, "begin"),
        Stage("encode the content", ENCODE),
        Stage("reply: finish the call, send and receive", ""),
    ),
    "spawn": (
        Stage("send, receive and decode the frame", TAKE),
        Stage("start a task, decode, wait for a thread", SPEC, "begin"),
        Stage("build the spec, in the thread", SPEC),
        Stage("back to the loop", REQUIRE, "begin"),
        Stage("decide", REQUIRE),
        Stage("", INTEND, "begin"),
        Stage("intent in the audit log", INTEND),
        Stage("register, start supervisors, open the socket", JAIL, "begin"),
        Stage("prepare the jail: ids, workspace, cgroup, plan", JAIL),
        Stage("", LAUNCH, "begin"),
        Stage("spawner: clone, mounts, send the plan", LAUNCH),
        Stage("", WALK, "begin"),
        Stage("walk in the child", WALK),
        Stage("evidence: observe and judge the layers", EXECUTE, "begin"),
        Stage("exec", EXECUTE),
        Stage("", READY, "begin"),
        Stage("the program connects", READY),
        Stage("running, registered", ACT),
        Stage("reply: finish the call, send and receive", ""),
    ),
    "exec": (
        Stage("send, receive and decode the frame", TAKE),
        Stage("start a task, decode, parse the command, decide", INTEND, "begin"),
        Stage("intent in the audit log", INTEND),
        Stage("wait for a thread", GROUP, "begin"),
        Stage("make a control group, in the thread", GROUP),
        Stage("back to the loop, plan", LAUNCH, "begin"),
        Stage("spawner: clone, send the plan", LAUNCH),
        Stage("join the sandbox's namespaces", DESCENT),
        Stage("walk in the child", WALK),
        Stage("observe", EXECUTE, "begin"),
        Stage("exec", EXECUTE),
        Stage("", END, "begin"),
        Stage("the command runs and is reaped", END),
        Stage("", REMOVE, "begin"),
        Stage("remove the control group, in a thread", REMOVE),
        Stage("reply: finish the call, send and receive", ""),
    ),
}


def resolve(function: str) -> tuple[Any, str]:
    """The module or class that has the function, and its name there; ``AttributeError`` if there is none."""
    module, _, path = function.partition(":")
    *owners, name = path.split(".")
    owner: Any = importlib.import_module(module)
    for each in owners:
        owner = getattr(owner, each)
    getattr(owner, name)
    return owner, name


def trace(function: str, events: list[Event]) -> None:
    """Make a function note in ``events`` when it begins and ends."""
    owner, name = resolve(function)
    original: Callable[..., Any] = getattr(owner, name)

    @wraps(original)
    def call(*args: Any, **options: Any) -> Any:
        events.append((function, "begin", perf_counter_ns()))
        try:
            return original(*args, **options)
        finally:
            events.append((function, "end", perf_counter_ns()))

    @wraps(original)
    async def call_async(*args: Any, **options: Any) -> Any:
        events.append((function, "begin", perf_counter_ns()))
        try:
            return await original(*args, **options)
        finally:
            events.append((function, "end", perf_counter_ns()))

    setattr(owner, name, call_async if iscoroutinefunction(original) else call)


def run_traced(call: str, path: Path) -> None:
    """Run ``agentos`` with the rest of the command line in this process; write the events to ``path`` at the end."""
    from agentos.__main__ import main

    events: list[Event] = []
    for function in dict.fromkeys(stage.function for stage in STAGES[call] if stage.function):
        trace(function, events)
    try:
        main()
    finally:
        path.write_text(json.dumps(events))


@contextmanager
def traced_kernel(call: str, home: Path) -> Iterator[Server]:
    """A traced kernel with one jailed agent; it has written its events on return."""
    (home / "fast.py").write_text(FAST)
    (home / "kernel.toml").write_text(config([READER]))
    argv = [sys.executable, "-m", "tests.speed.stages", call, str(home / "events"), "run", str(home / "kernel.toml")]
    socket = home / "kernel.sock"
    server = Server([*argv, "--socket", str(socket), "--state-dir", str(home / "state")], socket, None)
    with serving(server, 30) as kernel:
        yield kernel
        kernel.stop()


def ask(caller: Caller, opcode: int, fields: Mapping[str, object]) -> tuple[int, int]:
    """When the call was sent and answered, in ns."""
    body = json.dumps(fields).encode()
    sent = perf_counter_ns()
    reply = caller.call(opcode, body)
    received = perf_counter_ns()
    if b'"success":false' in reply.replace(b" ", b""):
        raise MeasurementError(f"0x{opcode:02X} {fields}: {reply.decode()}")
    return sent, received


def read(home: Path, calls: int) -> list[tuple[int, int]]:
    """READs of a small file in its workspace by a jailed agent."""
    directory = json.loads((home / "state" / "run.json").read_text())["directory"]
    with Caller(Path(directory, "1.sock")) as caller:
        ask(caller, WRITE, {"path": "notes.md", "content": "a line of a small file\n" * 40})
        return [ask(caller, READ, {"path": "notes.md"}) for _ in range(calls)]


def execute(home: Path, calls: int) -> list[tuple[int, int]]:
    """EXECs by the operator of ``true`` in the jail of an agent."""
    with Caller(home / "kernel.sock") as caller:
        return [ask(caller, EXEC, {"command": ["true"], "name": READER["name"]}) for _ in range(calls)]


def spawn(home: Path, calls: int) -> list[tuple[int, int]]:
    """SPAWNs by the operator of an agent with the fast runtime, which makes a call and ends."""
    taken = []
    with Caller(home / "kernel.sock") as caller:
        for number in range(calls):
            name = f"agent-{number}"
            sleep(REST)  # a jail is built ahead meanwhile, as for agents that don't start one after the other
            agent = {"name": name, "script": str(home / "fast.py"), "runtime": "fast", "restart": "temporary"}
            taken.append(ask(caller, SPAWN, agent))
            ask(caller, WAIT, {"name": name})
    return taken


def split(stages: Sequence[Stage], events: Sequence[Event], sent: int, received: int) -> list[float]:
    """Microseconds of each stage of one call, whose events are in order of time."""
    left = (event for event in events if sent <= event[2] <= received)
    taken, before = [], sent
    for stage in stages:
        at: int | None = received
        if stage.function:
            wanted = (stage.function, stage.point)
            at = next((at for function, point, at in left if (function, point) == wanted), None)
        if at is None:
            raise MeasurementError(f"{stage.name or 'rest'}: no {stage.point} of {stage.function} in this call")
        taken.append((at - before) / 1000)
        before = at
    return taken


def without_groups(stages: Sequence[Stage], events: Sequence[Event]) -> Sequence[Stage]:
    """The stages that a kernel has to which no control group is delegated, if this is one."""
    if any(function == GROUP for function, *_ in events):
        return stages
    return [stage for stage in stages if stage.function not in (GROUP, REMOVE)]


def measure(call: str, calls: int) -> tuple[Sequence[Stage], list[list[float]]]:
    """The stages of a call, and microseconds of each, by call."""
    make = {"read": read, "spawn": spawn, "exec": execute}[call]
    with tempfile.TemporaryDirectory(prefix="aos-", dir="/tmp") as directory:
        home = Path(directory)
        with traced_kernel(call, home):
            asked = make(home, WARM + calls)
        events = sorted(json.loads((home / "events").read_text()), key=itemgetter(2))
    stages = without_groups(STAGES[call], events)
    return stages, [split(stages, events, *each) for each in asked[WARM:]]


def as_table(call: str, stages: Sequence[Stage], taken: Sequence[Sequence[float]]) -> str:
    """The stages with the median of each, their sum, and the rest."""
    named = [(stage.name, median(us)) for stage, us in zip(stages, zip(*taken, strict=True), strict=True) if stage.name]
    rest = median(sum(us for stage, us in zip(stages, each, strict=True) if not stage.name) for each in taken)
    whole = median(map(sum, taken))
    rows = [(f"{call.upper()}, {len(taken)} calls", "p50, µs"), *((name, f"{us:,.0f}") for name, us in named)]
    rows += [("sum of the stages", f"{sum(us for _, us in named):,.0f}"), ("unexplained rest", f"{rest:,.0f}")]
    rows.append(("the whole call", f"{whole:,.0f}"))
    return "\n".join("  ".join(row).rstrip() for row in lined_up(rows))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.speed.stages", description=__doc__.splitlines()[0])
    parser.add_argument("call", nargs="?", choices=STAGES, help="(default: each)")
    asked = parser.parse_args()
    for call in [asked.call] if asked.call else STAGES:
        print(as_table(call, *measure(call, CALLS[call])), end="\n\n", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        run_traced(sys.argv.pop(1), Path(sys.argv.pop(1)))
    else:
        main()
