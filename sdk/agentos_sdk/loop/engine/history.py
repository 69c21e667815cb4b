"""The messages of a conversation, and what of them is left out when they no longer fit into the model's context."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]

CHARACTERS_PER_TOKEN = 3.5  # of code and English, estimated a little too high: for what no provider has counted yet
FULL = 0.75  # share of the context from which on the conversation is cut; the rest is for the answer and the tools
KEPT_TURNS = 2  # of the last answers: with their results they are cut only if nothing else helps
SHORT = 300  # characters of a tool's result that isn't worth cutting
IMAGE_TOKENS = 1500  # of one image: providers count one to two thousand for a large one
MAX_IMAGES = 3  # that are shown: the last ones
NO_IMAGE = {"type": "text", "text": "[image left out; view it again if it is needed]"}
SUMMARY_HEAD = "Summary of what was said and done before, which is left out here:\n"


class History:
    """Messages as THINK takes them. The first one is the task: it is never cut.

    When the messages no longer fit, first the results of old tool calls are left out, then all old messages are
    replaced by a summary. Nothing is removed from ``messages``; :meth:`shown` is what the model gets.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.summary = ""
        self.summarised = 1  # messages before this index are in the summary; 1: only the task, so none
        self.cut = 1  # results of tools before this index are left out
        self.shows_images = True  # false for a model that takes none
        self._counted = 0  # messages that the provider has counted …
        self._tokens = 0  # … and their tokens, with the system instructions and tools

    def add(self, message: Message) -> None:
        self.messages.append(message)

    def count(self, usage: Mapping[str, int]) -> None:
        """Note what the provider has counted for all messages, and its answer, which is added next.

        An answer from the cache has a usage of 0, which counts nothing.
        """
        if any(usage.values()):
            self._counted = len(self.messages) + 1
            self._tokens = usage["input"] + usage["output"] + usage["thinking"]

    def shown(self) -> list[Message]:
        """The messages for the next question."""
        summary = [{"role": "user", "content": SUMMARY_HEAD + self.summary}] if self.summary else []
        images = [place for place, message in enumerate(self.messages) if has_image(message)]
        oldest = images[-MAX_IMAGES] if len(images) > MAX_IMAGES else 0
        rest = []
        for place, message in enumerate(self.messages[self.summarised :], self.summarised):
            if place < self.cut:
                message = _without_result(message)
            rest.append(_without_image(message) if place < max(oldest, self.cut) or not self.shows_images else message)
        return [*self.messages[:1], *summary, *rest]

    def has_images(self) -> bool:
        """Whether the next question has an image."""
        return any(map(has_image, self.shown()))

    def estimate(self) -> int:
        """Tokens of the next question: what the provider has counted, and an estimate of what was added since."""
        if not self._counted:
            return estimate_tokens(self.shown())
        return self._tokens + estimate_tokens(self.messages[self._counted :])

    def is_full(self, context: int) -> bool:
        return self.estimate() > context * FULL

    def cut_results(self, context: int) -> None:
        """Leave out results of old tool calls; if the last ones alone are too large, these as well."""
        turns = self._turns()
        self.cut = max(self.cut, turns[-KEPT_TURNS] if len(turns) >= KEPT_TURNS else 1)
        if estimate_tokens(self.shown()) > context * FULL and self._old() == []:
            self.cut = len(self.messages)
        self._counted = 0  # what the provider has counted isn't what is shown now

    def _old(self) -> Sequence[Message]:
        """The messages that a summary would replace."""
        return self.messages[self.summarised : self._boundary()]

    def _boundary(self) -> int:
        turns = self._turns()
        return turns[-KEPT_TURNS] if len(turns) > KEPT_TURNS else self.summarised

    def _turns(self) -> list[int]:
        """Where answers of the model are: a conversation is cut only before one, never before a tool's result."""
        return [place for place, message in enumerate(self.messages) if message["role"] == "assistant"]

    def to_summarise(self, context: int) -> str:
        """A text of the old messages and the summary before them, for the question for a summary; empty if none."""
        if not (old := self._old()):
            return ""
        text = "\n\n".join([self.summary, *map(_as_text, old)])
        most = int(context * FULL * CHARACTERS_PER_TOKEN / 2)
        return text if len(text) <= most else f"{text[: most // 2]}\n[…]\n{text[-most // 2 :]}"

    def summarise(self, summary: str) -> None:
        """Replace the old messages by a summary."""
        self.summary, self.summarised = summary, self._boundary()
        self._counted = 0

    def trimmed(self) -> dict[str, Any]:
        """What is left out, as a record."""
        return {"cut": self.cut, "summarised": self.summarised, "summary": self.summary}

    def apply(self, record: Mapping[str, Any]) -> None:
        """Leave out what a record says."""
        self.cut, self.summarised, self.summary = record["cut"], record["summarised"], record["summary"]
        self._counted = 0


def estimate_tokens(messages: Sequence[Message]) -> int:
    texts = [_without_image(message) for message in messages]
    characters = sum(len(json.dumps(message, ensure_ascii=False)) for message in texts)
    return int(characters / CHARACTERS_PER_TOKEN) + IMAGE_TOKENS * sum(map(has_image, messages))


def has_image(message: Message) -> bool:
    """Whether it shows an image; a message shows one at most."""
    content = message["content"]
    return isinstance(content, list) and any(part["type"] == "image" for part in content)


def _without_image(message: Message) -> Message:
    if not has_image(message):
        return message
    parts = [NO_IMAGE if part["type"] == "image" else part for part in message["content"]]
    return {**message, "content": parts}


def _without_result(message: Message) -> Message:
    content = message["content"]
    if not isinstance(content, str) or not is_result(message) or len(content) <= SHORT:
        return message
    note = f"[result of {len(content)} characters left out; call the tool again if it is needed]"
    return {**message, "content": f"{content[:SHORT]}\n{note}"}


def is_result(message: Message) -> bool:
    """Whether it is a tool's result; those of the text protocol are the user's messages."""
    return message["role"] == "tool" or str(message["content"]).startswith(RESULT_HEAD)


RESULT_HEAD = "Result of "


def _as_text(message: Message) -> str:
    content = message["content"]
    text = content if isinstance(content, str) else " ".join(part.get("text", "[image]") for part in content or ())
    calls = "".join(
        f"\ncalls {call['name']}({json.dumps(call['arguments'], ensure_ascii=False)})"
        for call in message.get("tool_calls", ())
    )
    return f"{message['role']}: {text[:2000]}{calls}"
