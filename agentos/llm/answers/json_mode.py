"""Answers in JSON where a vendor's schemas can't say of what form: an instruction, and a check of the answer. No I/O.

Any JSON object (OpenAI's ``json_object``) is the schema ``{"type": "object"}``. Anthropic closes every object of a
schema, so that one without named properties can only be ``{}``: there the schema becomes an instruction.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve

from agentos.llm.providers.provider import Answer, Delta, NoJSON, OnDelta, Question
from agentos_sdk.encoding import codec

ANY_OBJECT = "Answer with a JSON object and nothing else: no other text and no code fence."
NOTES = frozenset({"$schema", "additionalProperties", "description", "title", "type"})


def is_any_object(schema: Mapping[str, Any] | None) -> bool:
    """Whether any JSON object matches."""
    if schema is None or schema.get("type") != "object" or not schema.keys() <= NOTES:
        return False
    return schema.get("additionalProperties", True) is True


def has_free_object(schema: object) -> bool:
    """Whether some object in a schema names no properties, or says that it may have others."""
    if isinstance(schema, Mapping):
        further = schema.get("additionalProperties", True if not schema.get("properties") else None)
        kinds = schema.get("type")
        if (kinds == "object" or (isinstance(kinds, list) and "object" in kinds)) and further not in (None, False):
            return True
        return any(map(has_free_object, schema.values()))
    return isinstance(schema, list) and any(map(has_free_object, schema))


def instruct(question: Question) -> str:
    """The system instructions with one to answer in JSON."""
    said = [question.system] if question.system else []
    schema = question.response_schema
    if not is_any_object(schema):
        return "\n\n".join([*said, f"{ANY_OBJECT} It has to match this JSON schema:\n{json.dumps(schema)}"])
    return "\n\n".join([*said, ANY_OBJECT])


def mentions_json(question: Question) -> bool:
    """Whether any text asks for JSON, without which OpenAI refuses ``json_object``."""
    texts = (question.system or "", *(message.text for message in question.messages))
    return any("json" in text.lower() for text in texts)


def hold_text(on_delta: OnDelta) -> Callable[[Delta], None]:
    """Deliver pieces without their text: it has to be checked as a whole."""
    return lambda delta: on_delta(Delta("", delta.unseen, delta.usage, begun=delta.begun or bool(delta.text)))


def check_answer(answer: Answer, vendor: str, on_delta: OnDelta) -> Answer:
    """The answer with its JSON object as text, which is delivered; one that was cut off, or calls tools, as it is.

    Raises :class:`NoJSON` if there is none in it.
    """
    text = answer.text
    if answer.finish_reason == "stop":
        found = find_object(text)
        if found is None:
            raise NoJSON(f"{vendor} was asked for a JSON object and answered with other text")
        text = found
    on_delta(Delta(text))
    return evolve(answer, text=text)


def find_object(text: str) -> str | None:
    """The JSON object in a text, which may have a fence or a sentence around it."""
    for begin, end in ((0, len(text)), (text.find("{"), text.rfind("}") + 1)):
        part = text[max(0, begin) : end].strip()
        try:
            if part.startswith("{") and isinstance(codec.parse(part.encode()), dict):
                return part
        except ValueError:
            pass
    return None
