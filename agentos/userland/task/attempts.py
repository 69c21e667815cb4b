"""Attempts at one task: several agents work at once, each in an overlay of its own, and each is checked there."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from agentos_sdk import AgentOSClient, AgentOSError
from agentos_sdk.errors import checked
from agentos_sdk.loop import Budget

from .running import RunningTask, Step, make_pipe

CHECK_SECONDS = 3600.0  # EXEC's longest
KEEPER = ("sleep", f"{CHECK_SECONDS + 60:.0f}")  # of an agent whose jail a check runs in; it ends if we are killed
SHOWN = 2000  # characters of a check's output: its end


class Checked(NamedTuple):
    """How a check has ended: its exit status, or why there is none, and the end of what it wrote."""

    exit_code: int | None = None
    why: str = ""
    output: str = ""

    @property
    def verdict(self) -> str:
        return "unchecked" if self.exit_code is None else f"exit {self.exit_code}" if self.exit_code else "passed"


class Size(NamedTuple):
    """What an attempt has changed: ``paths``, and lines in the texts that DIFF shows."""

    paths: int = 0
    added: int = 0
    removed: int = 0


class Attempts:
    """Tasks that run at once, shown and ended as one: what :class:`RunningTask` offers for one of them."""

    def __init__(self, socket: str, works: Mapping[str, Any]) -> None:
        pipe = make_pipe()
        self.tasks = [RunningTask(socket, name, work, pipe) for name, work in works.items()]
        self.name = f"{len(self.tasks)} attempts"
        self.wake = pipe[0]
        self._longest = max(len(task.name) for task in self.tasks)

    @property
    def is_over(self) -> bool:
        return all(task.is_over for task in self.tasks)

    @property
    def heeds_stop(self) -> bool:
        return any(task.heeds_stop for task in self._living())

    @property
    def is_steered(self) -> bool:
        return any(task.is_steered for task in self._living())

    def start(self) -> None:
        for task in self.tasks:
            task.start()

    def take_steps(self) -> Sequence[Step]:
        return [step for task in self.tasks for step in task.take_steps()]

    def drain(self) -> None:
        self.tasks[0].drain()

    def notify(self) -> None:
        self.tasks[0].notify()

    def tell(self, text: str) -> None:
        """Tell all that still run; raises ``AgentOSError`` with those that can't be told."""
        failed = []
        for task in self._living():
            try:
                task.tell(text)
            except AgentOSError as error:
                failed.append(str(error))
        if failed:
            raise AgentOSError("; ".join(failed))

    def stop(self) -> None:
        for task in self._living():
            task.stop()

    def kill(self) -> None:
        for task in self._living():
            task.kill()

    def _living(self) -> Sequence[RunningTask]:
        return [task for task in self.tasks if not task.is_over]

    def concerns(self, request: Mapping[str, Any]) -> bool:
        return any(task.concerns(request) for task in self.tasks)

    def prefix(self, step: Step) -> str:
        """The attempt that a step belongs to, before each of its lines."""
        return f"{step['task']:<{self._longest}} │ "


def share(budget: Budget, count: int) -> Budget:
    """The budget of one of ``count`` attempts: tokens and money are divided; iterations and time are for each."""
    tokens = None if budget.tokens is None else max(budget.tokens // count, 1)
    return budget._replace(tokens=tokens, money=None if budget.money is None else budget.money / count)


def find_loop_jail(client: AgentOSClient, name: str) -> Mapping[str, Any]:
    """The fields of SPAWN for the jail of a task of the loop; raises the kernel's ``CallError``."""
    kept = checked(client.fetch(f"task-spawn/{name}", "agent"))["value"]
    return {**kept, "env": {key: value for key, value in kept["env"].items() if key != "LOOP_TASK"}}


def check(client: AgentOSClient, running: RunningTask, jail: Mapping[str, Any], command: str) -> Checked:
    """Check an attempt by :func:`run_check`, unless it is stopped, and note how that has ended."""
    running.heeds_stop = running.is_steered = False
    if running.is_stopping or running.is_killed:
        return Checked(why="stopped")
    running.note({"task": running.name, "kind": "check", "text": command})
    fields = {key: value for key, value in jail.items() if key not in ("script", "args", "python")}
    keeper = {**fields, "name": running.name, "command": KEEPER, "restart": "temporary"}
    judged = run_check(client, running.name, command, lambda: checked(client.spawn(**keeper)))
    if running.is_killed:
        return Checked(why="stopped")
    if judged.exit_code is not None:
        said = f"exit status {judged.exit_code}" + (f"\n{judged.output}" if judged.output else "")
        is_ok = judged.exit_code == 0
        running.note({"task": running.name, "kind": "result", "call": "check", "ok": is_ok, "result": said})
    return judged


def run_check(client: AgentOSClient, name: str, command: str, open_jail: Callable[[], object]) -> Checked:
    """Run a command line in an agent's jail and overlay after its end; ``open_jail`` starts what keeps that open.

    What the command changes there is thrown away: it judges the agent's work, and is no part of it.
    """
    try:
        with _jail_of(client, name, open_jail):
            reply = client.exec(command, timeout=CHECK_SECONDS, name=name)
    except AgentOSError as error:
        return Checked(why=str(error))
    if not reply["success"]:
        return Checked(why=reply["error"])
    output = f"{reply['stdout']}{reply['stderr']}"[-SHOWN:].rstrip("\n")
    return Checked(reply["exit_code"], output=output)


@contextmanager
def _jail_of(client: AgentOSClient, name: str, open_jail: Callable[[], object]) -> Iterator[None]:
    """The jail is there for commands; afterwards its overlay is what it was."""
    before = checked(client.snapshot(name))["snapshot"]
    try:
        open_jail()
        try:
            yield
        finally:
            client.kill(name=name, grace=0)
            client.wait(name=name)
    finally:
        checked(client.rollback(name, before))
        checked(client.snapshots(name, remove=before))


def measure_diff(reply: Mapping[str, Any]) -> Size:
    """The size of what DIFF answers with ``content``. Git's own files aren't counted."""
    changes = [one for one in reply["changes"] if not f"{one['path']}/".startswith(".git/")]
    lines = [line for one in changes for line in (one["diff"] or "").split("\n")]
    added, removed = (sum(line.startswith(sign) for line in lines) for sign in "+-")
    return Size(len(changes) + reply["more"], added, removed)
