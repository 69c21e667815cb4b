"""A conversation with the model that is kept in the caller's private state: it survives restarts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentos_sdk.blocking import AgentOSClient
from agentos_sdk.errors import checked
from agentos_sdk.loop.asking import DEFAULT_CONTEXT, SUMMARISE
from agentos_sdk.loop.blocking_driver import BlockingDriver
from agentos_sdk.opcodes import Op

from .effects import Call, Reply, Work
from .history import History, Message

TRIM = "/trim"  # ends the key of what is left out


class Conversation:
    """Messages of the caller and of the model, under a ``name`` of the caller's own.

    ``say`` asks with all that was said before, and keeps question and answer; both are stored when the answer is there.
    When the messages no longer fit into the model's context, all but the first and the last ones are summarised.
    A failed call raises its ``CallError``, and nothing is kept of it but a summary that was made for it.
    """

    def __init__(self, client: AgentOSClient, name: str = "default", **more: Any) -> None:
        """``more``: ``model``, and ``system_instruction``. Raises ``ValueError`` for a name with a slash."""
        self._driver, self._exchange = BlockingDriver(client), Exchange(name, **more)

    @property
    def messages(self) -> list[Message]:
        """All that was said, as ``messages`` of THINK; of an earlier process once :meth:`load` or ``say`` is called."""
        return self._exchange.messages

    def say(self, text: str) -> str:
        """The model's answer to ``text``."""
        return self._driver.run(self._exchange.say(text))

    def load(self) -> None:
        """Fetch what was said before, by an earlier process as well."""
        self._driver.run(self._exchange.load())

    def clear(self) -> None:
        """Forget all that was said."""
        self._driver.run(self._exchange.clear())


class Exchange:
    """The conversation as work for a driver.

    ``conversation/NAME/000001`` is a question with its answer, ``conversation/NAME/000001/trim`` what is left
    out since.
    """

    def __init__(self, name: str, *, model: str | None = None, system_instruction: str | None = None) -> None:
        if not name or "/" in name:
            raise ValueError(f"name: expected a text without a slash, got {name!r}")
        self._prefix = f"conversation/{name}/"
        self._fields = {"model": model, "system_instruction": system_instruction}
        self._is_loaded = False
        self._forget()

    def _forget(self) -> None:
        self._history, self._turns, self._context = History(), 0, DEFAULT_CONTEXT

    @property
    def messages(self) -> list[Message]:
        return list(self._history.messages)

    def load(self) -> Work[None]:
        self._forget()
        for key in (yield from self._keys()):
            found = yield from _checked(Call(Op.FETCH, {"key": key, "scope": "agent"}))
            if key.endswith(TRIM):
                self._history.apply(found["value"])
            else:
                self._apply(found["value"])
        self._is_loaded = True

    def say(self, text: str) -> Work[str]:
        if not self._is_loaded:
            yield from self.load()
        question: Message = {"role": "user", "content": text}
        yield from self._trim()
        reply = yield from _checked(self._think({"messages": [*self._history.shown(), question]}))
        turn = {
            "question": question,
            "answer": {"role": "assistant", "content": reply["content"] or "(empty)"},
            "usage": reply["usage"],
            "context": reply.get("context"),
        }
        yield from self._store(f"{self._turns + 1:06}", turn)
        self._apply(turn)
        return str(reply["content"])

    def clear(self) -> Work[None]:
        for key in (yield from self._keys()):
            yield from _checked(Call(Op.DELETE, {"key": key, "scope": "agent"}))
        self._forget()
        self._is_loaded = True

    def _apply(self, turn: Mapping[str, Any]) -> None:
        self._history.add(turn["question"])
        self._history.count(turn["usage"])
        self._history.add(turn["answer"])
        self._context = turn["context"] or DEFAULT_CONTEXT
        self._turns += 1

    def _trim(self) -> Work[None]:
        """Replace old messages by a summary, if they don't fit, and store it before the question that may fail."""
        if not self._history.is_full(self._context) or not (old := self._history.to_summarise(self._context)):
            return
        reply = yield from _checked(self._think({"prompt": SUMMARISE + old}))
        self._history.summarise(reply["content"])
        yield from self._store(f"{self._turns:06}{TRIM}", self._history.trimmed())

    def _store(self, name: str, value: Mapping[str, Any]) -> Work[None]:
        fields = {"key": self._prefix + name, "value": value, "scope": "agent", "if_version": 0}
        yield from _checked(Call(Op.STORE, fields))

    def _think(self, fields: Mapping[str, Any]) -> Call:
        given = {name: value for name, value in self._fields.items() if value is not None}
        return Call(Op.THINK, {**given, **fields})

    def _keys(self) -> Work[list[str]]:
        keys: list[str] = []
        after: str | None = ""
        while after is not None:
            fields = {"prefix": self._prefix, "scope": "agent", "after": after}
            page = yield from _checked(Call(Op.KEYS, fields))
            keys += page["keys"]
            after = page["next"]
        return keys


def _checked(call: Call) -> Work[Reply]:
    return checked((yield call))
