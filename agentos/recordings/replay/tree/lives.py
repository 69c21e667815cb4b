"""Replays all lives of a recording, each alone against its own part of it."""

from collections.abc import Awaitable, Callable, Mapping

import trio
from attrs import define, evolve, field

from agentos.recordings.format import Life, Manifest
from agentos.recordings.masks import BadMask
from agentos.recordings.reader import BadRecording
from agentos.recordings.replay.life import MAX_DRIFT
from agentos.recordings.replay.progress import Progress, Replay, ReplayFailed, Verdict
from agentos_sdk.errors import CallError

AT_ONCE = 4  # programs
MAX_LIVES = 100  # of one replay
WORST_FIRST: tuple[Verdict, ...] = ("diverged", "exhausted", "unfinished", "can't", "drifted", "identical")


@define(eq=False)
class TreeReplay:
    """A :class:`~agentos.recordings.replay.progress.Replay` of several lives. ``lives`` says how many calls each has.

    ``open`` makes the replay of one when its turn comes; it raises ``CallError``, ``BadMask``, ``BadRecording``,
    ``ReplayFailed``.
    """

    name: str
    lives: Mapping[str, int]
    open: Callable[[str], Awaitable[Replay]]
    notes: list[str] = field(factory=list)  # about lives that aren't replayed
    parts: dict[str, Progress] = field(init=False)
    is_fork = False
    _whole: Progress = field(factory=Progress)

    def __attrs_post_init__(self) -> None:
        self.parts = {life: Progress(total) for life, total in self.lives.items()}

    @property
    def progress(self) -> Progress:
        """The sum of all lives."""
        return sum_progress(self._whole, self.parts, self.notes)

    async def run(self) -> None:
        turn = trio.CapacityLimiter(AT_ONCE)
        async with trio.open_nursery() as nursery:
            for life in self.lives:
                nursery.start_soon(self._run, life, turn)

    async def _run(self, life: str, turn: trio.CapacityLimiter) -> None:
        async with turn:
            progress = self.parts[life]
            try:
                replay = await self.open(life)
                progress = self.parts[life] = replay.progress
                progress.state = "RUNNING"
                await replay.run()
                progress.state = "COMPLETED"
            except (CallError, BadMask, BadRecording, ReplayFailed, OSError) as error:
                progress.state, progress.verdict, progress.error = "ERROR", "can't", str(error)


def sum_progress(whole: Progress, parts: dict[str, Progress], notes: list[str]) -> Progress:
    """``whole`` with the sum of these lives, and the worst verdict once each has one."""
    whole.lives = parts
    whole.total = sum(part.total for part in parts.values())
    whole.replayed = sum(part.replayed for part in parts.values())
    whole.skipped = sum(part.skipped for part in parts.values())
    whole.sealed = sum(part.sealed for part in parts.values())
    whole.divergence = "\n".join(part.divergence for part in parts.values() if part.divergence) or None
    whole.error = "\n".join(f"{life}: {part.error}" for life, part in parts.items() if part.error) or None
    whole.notes = notes
    drift = [evolve(one, where=f"{life}, {one.where}") for life, part in parts.items() for one in part.drift]
    whole.drift = drift[:MAX_DRIFT]
    masks = {mask for part in parts.values() for mask in part.masks}
    whole.masks = {mask: sum(part.masks.get(mask, 0) for part in parts.values()) for mask in sorted(masks)}
    verdicts = {part.verdict for part in parts.values()}
    if None not in verdicts:
        whole.verdict = next((verdict for verdict in WORST_FIRST if verdict in verdicts), None)
    return whole


def split_lives(manifest: Manifest) -> tuple[list[Life], list[str]]:
    """The lives that a replay of all is about, and sentences about the others: only a part of these was recorded."""
    chosen, notes = list[Life](), list[str]()
    for life in manifest.lives:
        if life.partial:
            notes.append(f"{life.life} isn't replayed: {life.reason}")
        else:
            chosen.append(life)
    return chosen, notes
