"""A provider that does what a test says, one step after the other."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import trio
from attrs import define, field

from agentos.llm.providers.provider import Answer, Delta, Message, OnDelta, Provider, Question
from agentos_sdk.values import Usage

Step: TypeAlias = "str | Delta | float | Exception"
"""A word that is heard, a delta, seconds that pass, or what goes wrong."""


@define
class Scripted(Provider):
    """A ``Provider``: each question gets the next script; the last one stays.

    A question for one of ``models`` gets that model's script instead, each time.
    """

    scripts: Sequence[Sequence[Step]] = (("yes",),)
    usage: Callable[[str], Usage] = lambda text: Usage(10, len(text))
    asked: list[str] = field(factory=list)
    most: list[int | None] = field(factory=list)
    begun: list[float] = field(factory=list)
    aborted: list[float] = field(factory=list)
    closed: bool = False
    models: Mapping[str, Sequence[Step]] = field(factory=dict)

    async def answer(self, question: Question, on_delta: OnDelta) -> Answer:
        self.asked.append(question.messages[-1].text)
        self.most.append(question.max_tokens)
        self.begun.append(trio.current_time())
        script = self.models.get(question.model) or self.scripts[min(len(self.asked), len(self.scripts)) - 1]
        text = ""
        try:
            for said in self._play(script, on_delta):
                if isinstance(said, float):
                    await trio.sleep(said)
                else:
                    text += said
        except trio.Cancelled:
            self.aborted.append(trio.current_time())
            raise
        return Answer(text, self.usage(text), "stop", "scripted")

    def _play(self, script: Sequence[Step], on_delta: OnDelta) -> Iterator[str | float]:
        for step in script:
            if isinstance(step, Exception):
                raise step
            if isinstance(step, float):
                yield step
            else:
                delta = step if isinstance(step, Delta) else Delta(step)
                on_delta(delta)
                yield delta.text

    async def aclose(self) -> None:
        self.closed = True


def question(text: str = "why?", max_tokens: int | None = None) -> Question:
    return Question("scripted", [Message("user", text)], max_tokens=max_tokens)
