"""What has come of a fork of a recorded life: what it used, what differs at its question, and if it passes a check."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from agentos.recordings.comparison import compare_answers, pair_calls, sum_use
from agentos.recordings.masks import join_masks
from agentos.recordings.matching import Difference
from agentos.recordings.reader import RecordedCall, read_recording
from agentos.userland.task.attempts import run_check
from agentos_sdk import AgentOSClient

from .recordings import readable

GOOD = ("identical", "drifted")  # verdicts about what came before the question


@frozen
class Former:
    """The life that is forked. ``answered`` are the numbers of its calls that the recording answers.

    ``question`` is the number of the call at which it goes on; of a tree it may be another life's.
    """

    calls: Sequence[RecordedCall]
    answered: Collection[int]
    masks: Sequence[str]
    question: int

    def format_use(self) -> list[str]:
        """What its other calls have used."""
        use = sum_use(call for call in self.calls if call.begin not in self.answered)
        return format_use(use.cost, use.tokens)


@frozen
class Fork:
    """What has come of one. ``differences`` are those of its answer to the question and the recorded one."""

    name: str
    model: str
    verdict: str
    why: str = ""
    cost: float | None = None
    tokens: int = 0
    differences: Sequence[Difference] | None = None
    end: str = ""
    recording: str | None = None
    notes: Sequence[str] = ()
    is_good: bool = False  # it has passed the check, or without one came to the question
    exit_code: int | None = None  # of the check

    def format_use(self) -> list[str]:
        return format_use(self.cost, self.tokens) if self.recording is not None else ["-", "-"]

    def format_difference(self) -> str:
        """The first words that differ, and how many more places do."""
        if not self.differences:
            return "no" if self.differences is not None else "-"
        first, more = self.differences[0], len(self.differences) - 1
        words = " → ".join(repr(" ".join(text.split())) for text in (first.recorded, first.now))
        return f"{words} (+{more})" if more else words


def describe_fork(name: str, model: str, ended: Mapping[str, Any], former: Former) -> Fork:
    """A fork that has ended, by what REPLAY_STATUS says of it or of one of its lives, and by its own recording."""
    verdict, why = ended["verdict"], ended["divergence"] or ended["error"] or ""
    if ended["recording"] is None:
        return Fork(name, model, verdict, why, notes=ended["notes"])
    with readable():
        made = read_recording(ended["recording"])
        calls = [*made.calls()]
        masks = join_masks(former.masks, made.manifest.masks)
    pairs = [(pair.first, pair.second) for pair in pair_calls(former.calls, calls, masks)]
    answered = {second.begin for first, second in pairs if first and second and first.begin in former.answered}
    use = sum_use(call for call in calls if call.begin not in answered)
    differences = None
    for first, second in pairs:
        if first and second and first.begin == former.question:
            differences = [*compare_answers(first.reply, second.reply, masks)]
    end = str(made.manifest.lives[0].exit or "") if made.manifest.lives else ""
    place, notes = ended["recording"], ended["notes"]
    return Fork(name, model, verdict, why, use.cost, use.tokens, differences, end, place, notes, verdict in GOOD)


def check_fork(client: AgentOSClient, fork: Fork, command: str) -> Fork:
    """Judge one that has come to the question by a command line in its jail, which its replay has kept."""
    if not fork.is_good:
        return fork
    checked = run_check(client, fork.name, command, lambda: None)
    status = checked.exit_code
    why = checked.why if status is None else "" if status == 0 else checked.output
    return evolve(fork, verdict=checked.verdict, why=why, exit_code=status, is_good=status == 0)


def format_use(cost: float | None, tokens: int) -> list[str]:
    return ["?" if cost is None else f"{cost:.4g}", f"{tokens:,}"]
