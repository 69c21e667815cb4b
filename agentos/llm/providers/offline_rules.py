r"""Rules of the offline provider, read from a TOML file; the first rule that matches a request applies.

```toml
[[rule]]
match = 'weather in (\w+)'     # searched in the last message: the user's or a tool's result
reply = 'It rains in \1.'      # \1 or \g<name> is what a group matched

[[rule]]
match = '(\d+) times (\d+)'
tool_calls = [{ name = "multiply", arguments = { a = '\1', b = '\2' } }]

[[rule]]
tool = "multiply"              # only if the last message is this tool's result
match = '.*'
reply = 'It is \g<0>.'

[[rule]]
match = 'busy'
fail = "slow_down"             # or "failing", "denied", "rejected", "malformed_call"; after the reply, if there is one
after = "2s"                   # the Retry-After time
times = 2                      # applies to two requests, then no more
```

``arguments`` may also be a text: what the model would write, which may be wrong JSON. A rule may also match the
request's ``system`` and ``model``, both as regular expressions, and set a ``finish_reason``. The first 65536 characters
of each text are searched.
"""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

from attrs import frozen

from agentos.services.files.foreign_files import read_regular
from agentos_sdk.encoding import codec
from agentos_sdk.encoding.codec import Invalid, Mistake, Seconds
from agentos_sdk.encoding.strict import Several

from .provider import FinishReason, Message, Question

MAX_FILE_BYTES = 4 << 20  # bytes
MAX_SEARCHED = 1 << 16  # characters at the beginning of a text: a search blocks the event loop

Positive = Annotated[int, codec.Rule(lambda number: number > 0, "a whole number from 1")]
Failure = Literal["slow_down", "failing", "denied", "rejected", "malformed_call"]
Keys = tuple[str | int, ...]


class BadRules(ValueError):
    """The file can't be used; ``mistakes`` lists every error in it."""

    def __init__(self, file: str, mistakes: Sequence[Mistake]) -> None:
        super().__init__(file, mistakes)
        self.file = file
        self.mistakes = tuple(mistakes)

    def __str__(self) -> str:
        return "\n".join(f"{self.file}: {mistake}" for mistake in self.mistakes)


@frozen
class CallTemplate:
    name: str
    arguments: Mapping[str, Any] | str = {}


@frozen
class Rule:
    """When the rule applies, and its answer; see the module's docstring."""

    match: str = ""
    system: str = ""
    model: str = ""
    tool: str | None = None
    reply: str = ""
    tool_calls: Sequence[CallTemplate] = ()
    finish_reason: FinishReason | None = None
    fail: Failure | None = None
    after: Seconds | None = None
    times: Positive | None = None

    def __attrs_post_init__(self) -> None:
        if found := list(self._mistakes()):
            raise Several(found)

    def match_question(self, question: Question) -> re.Match[str] | None:
        """The match of ``match``, if all conditions of the rule apply."""
        last = question.messages[-1] if question.messages else Message("user")
        if self.tool is not None and self.tool != answered_tool(question):
            return None
        match, system, model = self._patterns
        if not system.search((question.system or "")[:MAX_SEARCHED]) or not model.search(question.model[:MAX_SEARCHED]):
            return None
        return match.search(last.text[:MAX_SEARCHED])

    @cached_property
    def _patterns(self) -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
        return re.compile(self.match), re.compile(self.system), re.compile(self.model)

    def _mistakes(self) -> Iterator[tuple[Keys, str]]:
        for name, pattern in (("match", self.match), ("system", self.system), ("model", self.model)):
            if why := _why_invalid(re.compile, pattern):
                yield (name,), f"not a regular expression: {why}"
        if not _why_invalid(re.compile, self.match):
            yield from self._wrong_references()
        for number, call in enumerate(self.tool_calls):
            if why := _why_invalid(codec.encode, call.arguments):
                yield ("tool_calls", number, "arguments"), why
        if self.fail and self.tool_calls:
            yield ("tool_calls",), "an answer that fails calls no tool"
        if self.after is not None and self.fail not in ("slow_down", "failing"):
            yield ("after",), 'only with fail = "slow_down" or "failing"'
        if not (self.reply or self.tool_calls or self.fail or self.finish_reason):
            yield (), "says nothing: expected reply, tool_calls, fail or finish_reason"

    def _wrong_references(self) -> Iterator[tuple[Keys, str]]:
        pattern = re.compile(self.match)
        texts: list[tuple[Keys, str]] = [(("reply",), self.reply)]
        for number, call in enumerate(self.tool_calls):
            texts += _texts(call.arguments, ("tool_calls", number, "arguments"))
        for keys, text in texts:
            if why := _why_invalid(lambda template: pattern.sub(template, ""), text):
                yield keys, why


def fill_references(found: re.Match[str], value: Any) -> Any:
    """``value`` with group references replaced by what the groups matched."""
    match value:
        case str():  # a second for each 10 MB, which one without references needn't take
            return found.expand(value) if "\\" in value else value
        case Mapping():
            return {key: fill_references(found, each) for key, each in value.items()}
        case list():
            return [fill_references(found, each) for each in value]
    return value


def answered_tool(question: Question) -> str | None:
    """The name of the tool, if the last message is a tool's result."""
    answers = question.messages[-1].answers if question.messages else None
    calls = (call for message in question.messages for call in message.calls)
    return next((call.name for call in calls if call.id == answers), None) if answers is not None else None


def read_rules(path: str) -> Sequence[Rule]:
    """The rules in a file; raises :class:`BadRules`. Blocks on the disk, so call it in a thread."""

    @frozen
    class File:
        rule: Sequence[Rule]

    try:
        data = read_regular(path, MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise ValueError(f"larger than {MAX_FILE_BYTES >> 20} MiB")
        return codec.decode(File, tomllib.loads(data.decode())).rule
    except Invalid as error:
        raise BadRules(path, error.mistakes) from None
    except tomllib.TOMLDecodeError as error:
        raise BadRules(path, [Mistake("", f"not TOML: {error}")]) from None
    except UnicodeDecodeError:
        raise BadRules(path, [Mistake("", "not UTF-8")]) from None
    except RecursionError:
        raise BadRules(path, [Mistake("", "nested too deep")]) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name, a number with too many digits
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise BadRules(path, [Mistake("", why)]) from None


def _texts(value: Any, keys: Keys) -> Iterator[tuple[Keys, str]]:
    if isinstance(value, str):
        yield keys, value
    inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from _texts(each, (*keys, key))


def _why_invalid(parse: Callable[[Any], object], value: Any) -> str | None:
    """Why ``value`` can't be read, or ``None``. ``IndexError`` is raised for a group that doesn't exist."""
    try:
        parse(value)
    except (re.error, IndexError, TypeError, ValueError, OverflowError, RecursionError) as error:
        return str(error)
    return None
