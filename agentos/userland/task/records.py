"""What is kept of the tasks of the command line, with the kernel."""

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from agentos_sdk import AgentOSClient
from agentos_sdk.errors import checked

LIVING = ("starting", "running", "paused", "stopping", "backing_off")
PREFIX = "task-note/"


class TaskNote(NamedTuple):
    """``directory`` is what ``--dir`` named, empty without it; ``mode`` is ``overlay`` or ``direct``.

    ``at`` is when the task began, in seconds of Unix time. A task of an earlier release has no ``mode``. ``by`` is the
    program of others that works on it, empty for the loop, and ``end`` its status, once it has ended.
    """

    name: str
    text: str
    directory: str = ""
    at: float = 0.0
    mode: str = ""
    by: str = ""
    end: str = ""


def is_running(client: AgentOSClient, name: str) -> bool:
    """Whether the agent of a task lives."""
    found = client.inspect(name)
    return bool(found["success"]) and found["state"] in LIVING


def store_note(client: AgentOSClient, note: TaskNote) -> None:
    """Keep a note; raises the kernel's ``CallError``."""
    checked(client.store(PREFIX + note.name, note._asdict(), scope="agent"))


def forget_note(client: AgentOSClient, note: TaskNote) -> None:
    """Remove the note of a task that couldn't be started."""
    client.delete(PREFIX + note.name, "agent")


def find_note(client: AgentOSClient, name: str) -> TaskNote | None:
    """The note of a task, None if there is none. Those of earlier releases have a further field."""
    found = _fetch(client, PREFIX + name)
    return None if found is None else TaskNote(**{key: found[key] for key in found if key in TaskNote._fields})


def has_begun(client: AgentOSClient, name: str) -> bool:
    """Whether the agent of a task has begun to work on it."""
    return _fetch(client, f"task/{name}", name) is not None


def find_end(client: AgentOSClient, name: str) -> dict[str, Any] | None:
    """How a task has ended, as :class:`~agentos_sdk.loop.TaskResult`; None if it hasn't."""
    found = _fetch(client, f"task/{name}/end", name)
    return found if isinstance(found, dict) else None


def list_notes(client: AgentOSClient) -> Iterator[TaskNote]:
    """The notes of all tasks, oldest first."""
    names: list[str] = []
    after: str | None = ""
    while after is not None:
        page = checked(client.keys(PREFIX, "agent", after=after))
        names += [key.removeprefix(PREFIX) for key in page["keys"]]
        after = page["next"]
    notes = [note for name in names if (note := find_note(client, name)) is not None]
    yield from sorted(notes, key=lambda note: note.at)


def begin_note(name: str, text: str) -> TaskNote:
    return TaskNote(name, text, at=time.time())


def _fetch(client: AgentOSClient, key: str, agent: str | None = None) -> Any:
    reply = checked(client.fetch(key, "agent", agent))
    return reply["value"] if reply["exists"] else None
