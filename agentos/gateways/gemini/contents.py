"""Conversations of Gemini's requests as messages. No I/O.

A response of a function names its call by id, or, as its protocol has ids only lately, by the function's name: then it
belongs to the first call of that name in the model's last turn that has no response.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import count

from attrs import define, field

from agentos.gateways.request_fields import Mistake, decode_image
from agentos.llm.answers.called_tools import GENERATED_ID_PREFIX, arguments_of
from agentos.llm.answers.prompt_blocks import BlockList
from agentos.llm.providers.provider import Image, Message
from agentos_sdk.encoding import codec
from agentos_sdk.encoding.strict import Unexpected
from agentos_sdk.values import ToolCall

from .fields import GoogleFields, decode_signature, plain_base64

PASSED = ("thought", "thoughtSignature", "videoMetadata", "mediaResolution", "mediaProcessing", "partMetadata")
KINDS = ("text", "inlineData", "functionCall", "functionResponse")


@define(eq=False)
class Conversation:
    """Collects the messages of a request's contents."""

    _messages: list[Message] = field(factory=list)
    _texts: list[str] = field(factory=list)  # of the model, since the user's last
    _calls: list[ToolCall] = field(factory=list)
    _unanswered: set[str] = field(factory=set)  # ids of calls in the model's last turn
    _by_name: dict[str, deque[str]] = field(factory=dict)  # ids of those of a function, until one is found by its name
    _numbers: Iterator[int] = field(factory=count)

    def add(self, content: GoogleFields) -> None:
        """Add a content; Gemini's clients keep the pieces of a stream as contents of their own, which are joined."""
        match content.text("role") or "user":
            case "user" | "function":
                self._end_turn()
                self._messages += self._user_messages(content)
            case "model":
                self._add_model_parts(content)
            case role:
                raise Mistake(content.place("role"), str(Unexpected(role, "user", "model")))

    def finish(self) -> Sequence[Message]:
        self._end_turn()
        return self._messages

    def _end_turn(self) -> None:
        text = "".join(self._texts)
        if text or self._calls:
            self._messages.append(Message("assistant", text, calls=tuple(self._calls)))
        self._texts.clear()
        self._calls.clear()

    def _add_model_parts(self, content: GoogleFields) -> None:
        """Thoughts are left out: each provider makes its own anew."""
        if not self._texts and not self._calls:
            self._unanswered.clear()
            self._by_name.clear()
        for kind, part in parts_of(content):
            match kind:
                case "functionCall":
                    self._calls.append(self._call(part))
                case "text":
                    self._texts.append("" if part.flag("thought") else part.text("text") or "")
                case _:
                    raise Mistake(part.place(kind), "not supported in what the model says: leave it out")

    def _call(self, part: GoogleFields) -> ToolCall:
        call = part.required_object("functionCall")
        signature, arguments = part.text("thoughtSignature"), call.object("args")
        id_, name = call.text("id") or f"{GENERATED_ID_PREFIX}{next(self._numbers)}", call.called_name()
        self._unanswered.add(id_)
        self._by_name.setdefault(name, deque()).append(id_)
        given = arguments_of(arguments.data) if arguments is not None else {}
        return ToolCall(id_, name, given, decode_signature(signature) if signature else None)

    def _user_messages(self, content: GoogleFields) -> Iterator[Message]:
        """The responses of functions, each a message, and then what else the user says."""
        parts = [*parts_of(content)]
        responses = [part for kind, part in parts if kind == "functionResponse"]
        yield from map(self._response, responses)
        if len(parts) > len(responses) or not responses:
            said, images = BlockList(""), []
            for kind, part in parts:
                match kind:
                    case "text":
                        said.add_text("" if part.flag("thought") else part.text("text") or "")
                    case "inlineData":
                        said.add("image")
                        images.append(_image(part))
                    case "functionResponse":
                        pass
                    case _:
                        raise Mistake(part.place(kind), "not supported in what the user says: leave it out")
            yield Message("user", said.text, tuple(images), blocks=said.blocks)

    def _response(self, part: GoogleFields) -> Message:
        response = part.required_object("functionResponse")
        id_ = response.text("id") or self._find_call(response)
        self._unanswered.discard(id_)
        given = response.required_object("response").data
        output = given.get("output") if len(given) == 1 else None
        text = output if isinstance(output, str) else codec.encode(given).decode()
        images = []
        for kind, each in parts_of(response):
            if kind != "inlineData":
                raise Mistake(each.place(kind), "not supported: expected inlineData")
            images.append(_image(each))
        return Message("tool", text, tuple(images), answers=id_)

    def _find_call(self, response: GoogleFields) -> str:
        """The id of the first call of the function that is named and has no response yet."""
        name = response.required_text("name")
        ids = self._by_name.get(name, deque())
        while ids:
            if (found := ids.popleft()) in self._unanswered:
                return found
        raise Mistake(response.at, f"expected an id, or a functionCall of {name[:80]!r} in the turn before it")


def parts_of(content: GoogleFields) -> Iterator[tuple[str, GoogleFields]]:
    """Each part and its kind, which is one of :data:`KINDS`."""
    for part in content.objects("parts"):
        kinds = [name for name in part.names if name not in PASSED]
        wrong = next((kind for kind in kinds if kind not in KINDS), None)
        if wrong is not None:
            raise Mistake(part.place(wrong), f"not supported: expected {', '.join(KINDS[:-1])} or {KINDS[-1]}")
        if len(kinds) > 1:
            raise Mistake(part.at, f"expected one kind of data, got {' and '.join(kinds)}")
        yield (kinds[0] if kinds else "text"), part


def texts_of(content: GoogleFields) -> str:
    """The texts of a content that may have nothing else."""
    texts = []
    for kind, part in parts_of(content):
        if kind != "text":
            raise Mistake(part.place(kind), "not supported here: expected text")
        texts.append(part.text("text") or "")
    return "".join(texts)


def _image(part: GoogleFields) -> Image:
    data = part.required_object("inlineData")
    return decode_image(plain_base64(data.required_text("data")), data.required_text("mimeType"), data.place("data"))
