"""Fields of a JSON request that an agent sends to an endpoint, read with checks that name the field. No I/O."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar

from attrs import frozen

from agentos.kernel.wire.request_body import LARGE_TEXT_BYTES, parse_text
from agentos.llm.answers import sampling
from agentos.llm.answers.sampling import Sampling
from agentos.llm.providers.provider import Image, Question
from agentos_sdk.calls import think
from agentos_sdk.encoding import codec
from agentos_sdk.encoding.codec import Invalid
from agentos_sdk.encoding.strict import Unexpected
from agentos_sdk.errors import BadRequest
from agentos_sdk.values import LLMClass

T = TypeVar("T")

MAX_STOPS = 4


class Mistake(BadRequest):
    """An error in the field at ``param``."""

    def __init__(self, param: str, what: str) -> None:
        super().__init__(f"{param}: {what}", param=param)


@frozen
class Asked:
    """A request to a model, and whether its answer is streamed; ``class_`` is that of the queue, if it names one.

    ``left_out`` are fields, and types of tools, that the model's vendor isn't sent.
    """

    question: Question
    stream: bool = False
    class_: LLMClass | None = None
    left_out: Sequence[str] = ()


@frozen
class Fields:
    """An object in the request, at the path ``at``. A field that is null counts as missing."""

    data: Mapping[str, Any]
    at: str = ""

    def place(self, name: str) -> str:
        return f"{self.at}.{name}" if self.at else name

    def given(self, name: str) -> Any:
        """The value of a field as it was sent."""
        return self.data.get(name)

    @property
    def names(self) -> Sequence[str]:
        """The fields that aren't null."""
        return [name for name, value in self.data.items() if value is not None]

    def text(self, name: str) -> str | None:
        return self._typed(name, str, "a string")

    def named(self, name: str, values: Mapping[str, T | None]) -> T | None:
        """The value that the text in a field names; None if it is missing."""
        found = self.text(name)
        if found is not None and found not in values:
            raise Mistake(self.place(name), str(Unexpected(found, *values)))
        return None if found is None else values[found]

    def flag(self, name: str) -> bool:
        return self.choice(name) or False

    def choice(self, name: str) -> bool | None:
        return self._typed(name, bool, "true or false")

    def whole(self, name: str) -> int | None:
        """A whole number from 1 on."""
        found = self._typed(name, int, "a whole number")
        if found is not None and not 1 <= found < 1 << 31:
            raise Mistake(self.place(name), str(Unexpected(found, "a whole number from 1 on")))
        return found

    def integer(self, name: str, least: int, most: int) -> int | None:
        found = self._typed(name, int, "a whole number")
        if found is not None and not least <= found <= most:
            raise Mistake(self.place(name), str(Unexpected(found, f"a whole number from {least} to {most}")))
        return found

    def number(self, name: str, most: float, least: float = 0) -> float | None:
        found = self.given(name)
        if found is not None and (type(found) not in (int, float) or not least <= found <= most):
            raise Mistake(self.place(name), str(Unexpected(found, f"a number from {least:g} to {most:g}")))
        return None if found is None else float(found)

    def required_text(self, name: str) -> str:
        found = self.text(name)
        if not found:
            raise Mistake(self.place(name), "expected some text")
        return found

    def called_name(self) -> str:
        """The name in a past call, which a model may have left empty."""
        found = self.text("name")
        if found is None:
            raise Mistake(self.place("name"), "required field missing")
        return found

    def object(self, name: str) -> Self | None:
        found = self._typed(name, dict, "an object")
        return None if found is None else type(self)(found, self.place(name))

    def required_object(self, name: str) -> Self:
        found = self.object(name)
        if found is None:
            raise Mistake(self.place(name), "required field missing")
        return found

    def array(self, name: str) -> Sequence[Any]:
        return self._typed(name, list, "an array") or ()

    def objects(self, name: str) -> Iterator[Self]:
        for index, item in enumerate(self.array(name)):
            place = f"{self.place(name)}[{index}]"
            if type(item) is not dict:
                raise Mistake(place, str(Unexpected(item, "an object")))
            yield type(self)(item, place)

    def _typed(self, name: str, kind: type[T], expected: str) -> T | None:
        found = self.given(name)
        if found is not None and type(found) is not kind:
            raise Mistake(self.place(name), str(Unexpected(found, expected)))
        return found


def read_fields(body: bytes) -> Fields:
    """The fields of a request. Slow if ``body`` is large; raises :class:`BadRequest`."""
    try:
        return Fields(parse_object(body))
    except Invalid as error:
        raise BadRequest(str(error)) from None


def parse_object(body: bytes) -> Mapping[str, Any]:
    """The JSON object in ``body``; ``Invalid`` if it is none, or contains text that UTF-8 can't encode."""
    data = parse_text(body)
    if type(data) is not dict:
        raise Invalid([codec.Mistake("", str(Unexpected(data, "an object")))])
    try:
        if len(body) <= LARGE_TEXT_BYTES and b"\\u" in body:  # in larger ones the parser refuses it by itself
            json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Invalid([codec.Mistake("", "expected text, got half of a surrogate pair in it")]) from None
    return data


def refuse_fields(fields: Fields, refused: Mapping[str, str]) -> None:
    """Refuse those of the fields ``refused`` that say something; their values say what to do instead."""
    for name, instead in refused.items():
        if (given := fields.given(name)) or given == {}:
            raise Mistake(fields.place(name), f"not supported: {instead}")


def check_stops(stops: object, place: str, *expected: str) -> Sequence[str]:
    """The stop sequences in the field at ``place``, at most :data:`MAX_STOPS`; ``expected`` is what else it may be."""
    if stops is None:
        return ()
    if type(stops) is not list or len(stops) > MAX_STOPS or not all(type(stop) is str and stop for stop in stops):
        raise Mistake(place, str(Unexpected(stops, *expected, f"an array of at most {MAX_STOPS} texts")))
    return stops


def read_schema(wanted: Fields | None, holder: str = "") -> Mapping[str, Any] | None:
    """The schema that OpenAI's format of an answer has, in its field ``holder``; None if any text will do."""
    kind = wanted.required_text("type") if wanted is not None else "text"
    if wanted is None or kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    named = (wanted.object(holder) if holder else wanted) if kind == "json_schema" else None
    schema = named.object("schema") if named is not None else None
    if schema is None:
        has = f"{holder}.schema" if holder else "a schema"
        raise Mistake(wanted.at, f"expected the type text, json_object or json_schema, which has {has}")
    return schema.data


def check_supported(parameters: Sampling, provider: str, fields: Mapping[str, str]) -> None:
    """Refuse a parameter that the provider doesn't support; ``fields`` are the fields of those with another name."""
    name = sampling.unsupported_parameter(parameters, provider)
    if name is not None:
        raise Mistake(fields.get(name, name), f"the kernel's provider ({provider}) can't do this: leave it out")


def decode_image(data: str, mime_type: str, place: str) -> Image:
    """Decode an image from the base64 ``data`` in the field at ``place``. Slow if it is large."""
    try:
        image = codec.decode(think.Image, {"data": data, "mime_type": mime_type}, where=place)
    except Invalid as error:
        raise Mistake(place, "; ".join(mistake.message for mistake in error.mistakes)) from None
    return Image(image.decoded, mime_type)
