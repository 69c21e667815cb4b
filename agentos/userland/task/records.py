"""What is kept of the tasks of the command line: texts with the kernel, saved files in the user's state."""

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from agentos.userland.directories import state_home
from agentos_sdk import AgentOSClient, AgentOSError
from agentos_sdk.errors import from_reply

from .saved_files import remove_tree

MAX_SAVED = 20  # directories that are kept; the oldest are removed, but for those of tasks that run
USER = "task.json"
REPLY_SECONDS = 5.0  # for a kernel to say whether a task runs
LIVING = ("starting", "running", "paused", "stopping", "backing_off")
PREFIX = "task-note/"


class PlaceUser(NamedTuple):
    """The task that saved files belong to, and the socket of its kernel: all kernels' tasks save in one directory."""

    socket: str
    task: str


class TaskNote(NamedTuple):
    """``directory`` is what ``--dir`` named and ``saved`` where its files are saved, both empty without it.

    ``at`` is when the task began, in seconds of Unix time.
    """

    name: str
    text: str
    directory: str = ""
    saved: str = ""
    at: float = 0.0

    @property
    def place(self) -> Path:
        return Path(self.saved)


def saved_directory() -> Path:
    """Where the files of tasks are saved."""
    return Path(state_home(), "agentos", "tasks")


def new_place(user: PlaceUser | None = None) -> Path:
    """A new directory for saved files; removes the oldest of those that are too many, and that no running task uses."""
    above = saved_directory()
    above.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.chmod(above, 0o700)
    places = sorted((path for path in above.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
    too_many = len(places) - MAX_SAVED + 1
    for path in places:
        if too_many > 0 and not is_in_use(path):
            too_many -= 1
            with suppress(OSError):
                remove_tree(path)
    place = above / uuid4().hex
    place.mkdir(mode=0o700)
    if user is not None:
        (place / USER).write_text(json.dumps(user._replace(socket=os.path.abspath(user.socket))))
    return place


def is_in_use(place: Path) -> bool:
    """Whether the task that saved files belong to runs. It may where its kernel listens, and gives no reply in time."""
    try:
        user = PlaceUser(*json.loads((place / USER).read_text()))
        with socket.socket(socket.AF_UNIX) as kernel:
            kernel.settimeout(REPLY_SECONDS)
            kernel.connect(user.socket)
    except (OSError, ValueError, TypeError):
        return False
    try:
        with AgentOSClient(user.socket, REPLY_SECONDS) as client:
            return is_running(client, user.task)
    except AgentOSError:
        return True


def is_running(client: AgentOSClient, name: str) -> bool:
    """Whether the agent of a task lives."""
    found = client.inspect(name)
    return bool(found["success"]) and found["state"] in LIVING


def store_note(client: AgentOSClient, note: TaskNote) -> None:
    """Keep a note; raises the kernel's ``CallError``."""
    reply = client.store(PREFIX + note.name, note._asdict(), scope="agent")
    if not reply["success"]:
        raise from_reply(reply)


def forget_note(client: AgentOSClient, note: TaskNote) -> None:
    """Remove the note of a task that couldn't be started, and what is saved for it."""
    client.delete(PREFIX + note.name, "agent")
    if note.saved:
        with suppress(OSError):
            remove_tree(note.place)


def find_note(client: AgentOSClient, name: str) -> TaskNote | None:
    """The note of a task, None if there is none."""
    found = _fetch(client, PREFIX + name)
    return None if found is None else TaskNote(**found)


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
        page = client.keys(PREFIX, "agent", after=after)
        if not page["success"]:
            raise from_reply(page)
        names += [key.removeprefix(PREFIX) for key in page["keys"]]
        after = page["next"]
    notes = [note for name in names if (note := find_note(client, name)) is not None]
    yield from sorted(notes, key=lambda note: note.at)


def begin_note(name: str, text: str) -> TaskNote:
    return TaskNote(name, text, at=time.time())


def _fetch(client: AgentOSClient, key: str, agent: str | None = None) -> Any:
    reply = client.fetch(key, "agent", agent)
    if not reply["success"]:
        raise from_reply(reply)
    return reply["value"] if reply["exists"] else None
