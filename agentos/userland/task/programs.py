"""Coding agents of others that work on a task: each is found on this host by its preset, and runs in a jail."""

import os
import re
import shutil
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from agentos.presets import BadPreset, Preset, check_place, read_preset, user_directories
from agentos.sandbox.files.interpreter_prefixes import describe_exposure, is_within
from agentos.sandbox.files.root_files import CODE, SYSTEM_PATHS
from agentos_sdk import AgentOSClient, AgentOSError
from agentos_sdk.encoding.quantities import size
from agentos_sdk.errors import checked, from_reply
from agentos_sdk.loop import Budget, TaskResult
from agentos_sdk.loop.engine.driving import LONGEST_WINDOW

from .records import TaskNote, store_note
from .running import RunningTask
from .usage import find_use

LOOP = "loop"  # stands for the built-in loop among the programs
MAX_SUMMARY = 200  # lines
COLOURS = re.compile(r"\x1b\[[\d;]*m")  # other escapes are shown as such
POLL_SECONDS = 1.0  # between two looks at what the model has answered
PATH = "/usr/local/bin:/usr/bin:/bin"  # of every jail
STEERED = ("python3", "-m", "agentos_sdk.steered_program")
OWN_PLACE = "install it into a directory of its own"


class BadProgram(Exception):
    """A program can't work on tasks here; the text says why, and what to do."""


class Program(NamedTuple):
    """A program of others: its preset, and the fields of SPAWN that show it in a jail.

    ``place`` has ``program``, the first word of a command, or ``script`` and ``python``. ``calls`` are the answers of
    the model that a task may have; None: any number.
    """

    name: str
    preset: Preset
    place: Mapping[str, str]
    model: str = ""
    calls: int | None = None


def find_program(name: str, project: Path | None, workspaces: Sequence[str]) -> Program:
    """A program by the name of its preset. Raises :class:`BadProgram`; one that isn't installed is told how to be.

    ``project`` is the directory of the configuration file, if there is one; no preset is taken from ``workspaces``.
    """
    directories = user_directories(project)
    try:
        check_place(name, directories, workspaces)
        preset = read_preset(name, directories)
    except BadPreset as error:
        raise BadProgram(f"--with: {error}, or {LOOP}") from None
    if not preset.task:
        raise BadProgram(f'--with {name}: its preset has no command for a task: give it task = [..., "{{task}}"]')
    found = shutil.which(preset.task[0])
    if found is None:
        how = f": {preset.install}" if preset.install else ""
        raise BadProgram(f"--with {name}: there is no program {preset.task[0]!r} in PATH; install {preset.about}{how}")
    try:
        where = place(os.path.abspath(found))
        if "script" in where and (preset.files or preset.steered):
            what = "files are written" if preset.files else "messages are"
            raise BadProgram(f"its {what} for a command, and {found} is a script of Python")
        return Program(name, preset, where)
    except BadProgram as error:
        raise BadProgram(f"--with {name}: {error}") from None


def place(found: str) -> Mapping[str, str]:
    """Where a jail has the program that is found at a path of the host. Raises :class:`BadProgram`."""
    real = os.path.realpath(found)
    interpreter = read_interpreter(real)
    is_python = os.path.basename(interpreter).startswith("python")
    if is_python and os.path.isabs(interpreter) and not _is_systems(interpreter):
        return {"script": real, "python": interpreter}
    if _is_systems(found) and _is_systems(real):
        root, where = None, found
    else:
        root = find_root(found, real)
        where = os.path.join(CODE, os.path.relpath(found if is_within(found, root) else real, root))
    if os.path.basename(interpreter) == "node":
        node = shutil.which("node")
        has_own = root is not None and os.path.exists(os.path.join(root, "bin", "node"))
        if node is None or not (has_own or _is_systems(os.path.realpath(node))):
            raise BadProgram(f"{found} needs Node.js in /usr, or beside it: {node or 'it'} isn't in a jail")
    return {"program": where, **({"code": root} if root is not None else {})}


def read_interpreter(path: str) -> str:
    """The interpreter that the first line of a script names, by itself or by env; empty for other programs."""
    with open(path, "rb") as file:
        first = file.readline(4096)
    words = first[2:].decode(errors="replace").split() if first.startswith(b"#!") else []
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-")]
    return words[0] if words else ""


def find_root(found: str, real: str) -> str:
    """The directory that a jail is to show for a program: what it was installed into, and nothing else."""
    exposed = ""
    for path in (found, real):
        directory = os.path.dirname(path)
        if directory.endswith("/node_modules/.bin"):
            root = os.path.dirname(os.path.dirname(os.path.dirname(path)))
        else:
            root = os.path.dirname(directory) if os.path.basename(directory) == "bin" else directory
        if not is_within(real, root):
            continue
        if (why := describe_exposure(root)) is None:
            return root
        exposed = exposed or why
    raise BadProgram(f"for {found} {exposed or 'it is a link to ' + real}: {OWN_PLACE}")


def _is_systems(path: str) -> bool:
    return any(path.startswith(f"{each}/") for each in SYSTEM_PATHS)


def spawn_fields(program: Program, text: str, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of SPAWN for the agent of a task; ``options`` are those of the loop's agent."""
    preset, model = program.preset, program.model
    limits = {"memory": preset.memory, **options.get("limits", {})}
    env = preset.environment(model, size(limits["memory"]))
    words = [word.replace("{task}", text) for word in preset.steered or preset.task]
    if "script" in program.place:
        fields: dict[str, Any] = {**program.place, "args": list(preset.command(words, model)[1:])}
    else:
        fields = {name: each for name, each in program.place.items() if name == "code"}
        if os.path.exists(os.path.join(program.place.get("code", "/nowhere"), "bin", "node")):
            env["PATH"] = f"{CODE}/bin:{PATH}"
        command = preset.command([program.place["program"], *words[1:]], model)
        fields["command"] = [*_steering(preset, text), *command]
    budget: Budget = options["budget"]
    amounts = {"tokens": budget.tokens, "money": budget.money, "calls": program.calls}
    line = {what: amount for what, amount in amounts.items() if amount is not None}
    return {
        **fields,
        "name": name,
        "env": env,
        "limits": limits,
        "terminals": preset.terminals,
        "workspace": options.get("workspace", "keep"),
        "workspace_mode": options.get("workspace_mode", "direct"),
        "permissions": options["permissions"],
        "restart": "temporary",
        **({"llm": {"budget": [{**line, "per": LONGEST_WINDOW}]}} if line else {}),
    }


def _steering(preset: Preset, text: str) -> Sequence[str]:
    """The words before the command of a program that takes messages on its standard input."""
    if not preset.steered:
        return ()
    is_told = any("{task}" in word for word in preset.steered)
    return *STEERED, preset.messages, "" if is_told else text


def run_program(
    client: AgentOSClient, running: RunningTask, *, note: TaskNote, fields: Mapping[str, Any], seconds: float | None
) -> TaskResult:
    """Start a program and show its output until it has ended; after ``seconds`` it is ended.

    The summary is the end of what it has written to stdout.
    """
    running.heeds_stop = False
    running.is_steered = tuple(fields.get("command", ())[: len(STEERED)]) == STEERED
    late, said = threading.Event(), deque[str](maxlen=MAX_SUMMARY)
    if running.is_stopping or running.is_killed:
        return TaskResult("stopped", "", note.name, note.name, 0, 0, None, "it was stopped before it began")
    reply = client.spawn(**fields)
    if not reply["success"] and reply.get("exit_code") is None and reply.get("signal") is None:
        raise from_reply(reply)
    with _watch(running, seconds, late):
        if reply["success"]:
            for page in client.follow_logs(agent_id=reply["id"], run=0, since=0):
                _show(running, page, said)
        else:
            _show(running, client.logs(note.name, tail=2000), said)  # it ended before it counted as started
    running.said = "\n".join(said)  # it was shown
    result = _result(client, note, client.wait(name=note.name), late.is_set())._replace(summary=running.said)
    store_note(client, note._replace(end="stopped" if running.is_killed else result.status))
    return result


def _result(client: AgentOSClient, note: TaskNote, end: Mapping[str, Any], late: bool) -> TaskResult:
    found = client.inspect(note.name)
    calls = found["llm"]["spent"]["calls"] if found["success"] else 0
    tokens, cost = find_use(client, note)
    status: Any = "done" if end["exit_code"] == 0 else "failed"
    why = "" if status == "done" else str(end["reason"])
    if late:
        status, why = "budget", "not done: its time is over"
    elif status == "failed" and _is_exhausted(client, note):
        status, why = "budget", f"{why}, and the budget has refused a question"
    return TaskResult(status, "", note.name, note.name, calls, tokens, cost, why)


def _is_exhausted(client: AgentOSClient, note: TaskNote) -> bool:
    """Whether the task's budget has refused a question: INSPECT no longer tells it of an agent that has ended."""
    with AgentOSClient(client.socket_path) as own:  # subscriptions are a connection's
        checked(own.subscribe(["BUDGET_EXHAUSTED"], since=0))
        events = checked(own.poll_events(1000))["events"]
    return any(event["data"]["name"] == note.name for event in events)


def _show(running: RunningTask, page: Mapping[str, Any], said: deque[str]) -> None:
    for line in page["lines"]:
        text = COLOURS.sub("", line["text"])
        if line["stream"] == "stdout":
            said.append(text)
        if line["stream"] != "kernel":
            running.note({"task": running.name, "kind": "output", "stream": line["stream"], "text": text})
    if page["missed"]:
        text = f"({page['missed']} older lines are no longer kept)"
        running.note({"task": running.name, "kind": "output", "stream": "stderr", "text": text})


@contextmanager
def _watch(running: RunningTask, seconds: float | None, late: threading.Event) -> Iterator[None]:
    """Note what the model has answered; end the program after ``seconds``, and set ``late``."""
    over = threading.Event()
    deadline = None if seconds is None else time.monotonic() + seconds

    def watch() -> None:
        calls = tokens = 0
        with suppress(AgentOSError), AgentOSClient(running.socket) as client:
            while not over.wait(POLL_SECONDS):
                found = client.inspect(running.name)
                if found["success"] and (spent := found["llm"]["spent"])["calls"] > calls:
                    used = spent["input"] + spent["output"] + spent["thinking"]
                    new = {"step": spent["calls"], "tokens": used - tokens, "cost": None}
                    running.note({"task": running.name, "kind": "asked", **new})
                    calls, tokens = spent["calls"], used
                if deadline is not None and time.monotonic() > deadline:
                    late.set()
                    client.kill(name=running.name)
                    return

    thread = threading.Thread(target=watch, name=f"{running.name} watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
