"""What is under way: recordings that go on, and calls that haven't ended."""

from collections.abc import Collection
from typing import Any

from attrs import Factory, define

from agentos.recordings.format import Life, Manifest

from .selection import Selection
from .writer import Target

MAX_CHUNK_BYTES = 16 << 20  # of one call that are kept until it ends
CHUNK_COST = 100  # bytes that a chunk counts besides its body


@define(eq=False)
class Active:
    """A recording that goes on. ``automatic``: of one life, because its agent has `record`."""

    manifest: Manifest
    target: Target
    selection: Selection
    automatic: bool = False
    max_entries: int | None = None
    left_out: Collection[str] = ()  # calls that an export leaves out
    entries: int = 0
    lives: dict[str, Life] = Factory(dict)  # the present ones, by name of the life


@define(eq=False)
class Begun:
    """A call under way."""

    number: int
    at: int
    below: Any  # what the observer of all calls makes of it
    chunks: list[bytes] = Factory(list)
    size: int = 0
    files: int = 0  # paths that it has changed, which are kept

    def take(self, chunk: bytes) -> None:
        self.size += len(chunk) + CHUNK_COST
        if self.size <= MAX_CHUNK_BYTES:
            self.chunks.append(chunk)
