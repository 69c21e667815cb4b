"""The conversation that ``agentos think -c`` continues: the last one of this terminal, else the user's last one.

Each terminal session has a file of its own in the user's state directory, which only the user may read.
"""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from attrs import define, field

from agentos.userland.cli.common import Failed, printable
from agentos.userland.directories import state_home
from agentos.userland.whole_files import replacing
from agentos_sdk.clients.question import encode_image

MAX_BYTES = 8 << 20  # of a conversation as JSON; its oldest turns are left out
MAX_FILES = 20  # conversations that are kept; the oldest are removed


@define
class Conversation:
    """``messages`` are as in THINK: the user's and the model's in turn, images included."""

    system: str | None = None
    model: str | None = None
    messages: list[dict[str, Any]] = field(factory=list)

    def add(self, prompt: str, images: Sequence[bytes], answer: str) -> None:
        """Add a question and its answer. Leaves out the oldest questions of a conversation that has become too long."""
        shown: list[dict[str, Any]] = [{"type": "image", **encode_image(image)} for image in images]
        asked = [*shown, {"type": "text", "text": prompt}] if shown else prompt
        self.messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
        sizes = [len(json.dumps(message)) for message in self.messages]
        while sum(sizes) > MAX_BYTES:
            del self.messages[:2], sizes[:2]


def directory() -> Path:
    return Path(state_home(), "agentos", "conversations")


def load_conversation() -> Conversation:
    """The last conversation of this terminal session, else the user's last one."""
    own = directory() / _session()
    newest = sorted(_files(), key=lambda path: path.stat().st_mtime)
    path = own if own.exists() else newest[-1] if newest else None
    if path is None:
        raise Failed("-c: there is no conversation yet: ask without -c first", {"code": "not_found"})
    try:
        return Conversation(**json.loads(path.read_text()))
    except OSError as error:
        raise Failed(f"-c: {path}: {error.strerror}") from None
    except (ValueError, TypeError, RecursionError):
        raise Failed(f"-c: {path} is no conversation: remove it") from None


def save_conversation(conversation: Conversation) -> None:
    """Keep it as the last one of this terminal session. Where that fails, the user is told: the answer is there."""
    data = json.dumps({name: getattr(conversation, name) for name in ("system", "model", "messages")})
    place = directory()
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chmod(place, 0o700)
        with replacing(place / _session()) as file:
            file.write(data.encode())
        for path in sorted(_files(), key=lambda path: path.stat().st_mtime)[:-MAX_FILES]:
            path.unlink(missing_ok=True)
    except OSError as error:
        click.secho(printable(f"(not kept for -c: {place}: {error.strerror})"), fg="bright_black", err=True)


def _files() -> list[Path]:
    with suppress(OSError):
        return [path for path in directory().iterdir() if not path.name.startswith(".")]
    return []


def _session() -> str:
    """The name of the file of this terminal session: its leader's pid, and when that began, as pids are used again."""
    leader = os.getsid(0)
    with suppress(OSError, IndexError):
        began = Path(f"/proc/{leader}/stat").read_text().rpartition(")")[2].split()[19]
        return f"{leader}-{began}"
    return str(leader)
