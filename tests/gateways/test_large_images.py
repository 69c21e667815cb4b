"""A 16 MiB image, or JSON schema, is read and sent on without holding up the rest of the process.

What counts is how long a step in a thread may keep the interpreter from another thread: in CPU time of that thread,
so that others do not disturb, and relative to one pass of the JSON parser over the body, which cannot be divided, so
that the speed of the machine does not matter either.
"""

from __future__ import annotations

import base64
import functools
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

import msgspec
import pytest
from attrs import frozen

from agentos.access.think_request import digest_question, parse_think
from agentos.gateways.anthropic.request import parse_request as parse_messages
from agentos.gateways.gemini.request import parse_request as parse_contents
from agentos.gateways.openai import request, responses_request
from agentos.gateways.request_fields import read_fields
from agentos.llm.providers.account import ProviderAccount
from agentos.llm.providers.prompts.base64_parts import Base64Parts
from agentos.llm.providers.provider import Image, Message, Question
from agentos.llm.queue.claims import measure_request
from agentos.llm.settings import Timeouts

if TYPE_CHECKING:
    from agentos.llm.providers.anthropic import Anthropic
    from agentos.llm.providers.gemini import Gemini
    from agentos.llm.providers.openai import OpenAI

IMAGE = bytes(range(256)) * (12 * 4096 - 16)
QUESTION = Question("a-model", [Message("user", "what?", [Image(IMAGE, "image/png")])])
ACCOUNT = ProviderAccount("vendor", "a-long-enough-key", "KEY")


@frozen
class Bodies:
    """The image, as base64, in the requests of each call; and a schema as large."""

    chat: bytes
    responses: bytes
    messages: bytes
    contents: bytes
    think: bytes
    schema: bytes


@functools.cache
def bodies() -> Bodies:
    encoded = base64.b64encode(IMAGE)
    url = b"data:image/png;base64," + encoded
    return Bodies(
        chat=b'{"messages":[{"role":"user","content":[{"type":"text","text":"\\u00e9"},%s]}]}'
        % (b'{"type":"image_url","image_url":{"url":"%s"}}' % url),
        responses=b'{"input":[{"role":"user","content":[{"type":"input_image","image_url":"%s"}]}]}' % url,
        messages=b'{"messages":[{"role":"user","content":[{"type":"image","source":%s}]}]}'
        % (b'{"type":"base64","media_type":"image/png","data":"%s"}' % encoded),
        contents=b'{"contents":[{"parts":[{"inlineData":{"mimeType":"image/png","data":"%s"}}]}]}'
        % base64.urlsafe_b64encode(IMAGE),
        think=b'{"prompt":"what?","images":[{"mime_type":"image/png","data":"%s"}]}' % encoded,
        schema=b'{"prompt":"what?","response_schema":{"type":"object","description":"%s"}}' % encoded,
    )


def read_response(body: bytes) -> None:
    responses_request.parse_request(read_fields(body), [], "m", "openai")


def compose(provider: OpenAI | Gemini | Anthropic) -> None:
    parts = Base64Parts()
    parts.splice(provider._transport._compose_request(partial(provider._compose, QUESTION, parts)))


def openai() -> OpenAI:
    from agentos.llm.providers.openai import OpenAI

    return OpenAI(ACCOUNT, None, Timeouts())


def gemini() -> Gemini:
    from agentos.llm.providers.gemini import Gemini

    return Gemini(ACCOUNT, None, Timeouts())


def anthropic() -> Anthropic:
    from agentos.llm.providers.anthropic import Anthropic

    return Anthropic(ACCOUNT, None, Timeouts())


# Each makes its step, which is then measured: neither the bodies nor the vendors' SDKs are needed to collect tests.
STEPS: dict[str, Callable[[], Callable[[], object]]] = {
    "chat completion": lambda: partial(request.parse_request, bodies().chat, "m"),
    "response": lambda: partial(read_response, bodies().responses),
    "message": lambda: partial(parse_messages, bodies().messages, "m", "openai"),
    "content": lambda: partial(parse_contents, bodies().contents, "m", "gemini"),
    "THINK": lambda: partial(parse_think, bodies().think, "m"),
    "THINK with a large schema": lambda: partial(parse_think, bodies().schema, "m"),
    "measure a large schema": lambda: partial(measure_request, parse_think(bodies().schema, "m").question),
    "digest": lambda: partial(digest_question, QUESTION),
    "measure": lambda: partial(measure_request, QUESTION),
    "openai": lambda: partial(compose, openai()),
    "gemini": lambda: partial(compose, gemini()),
    "anthropic": lambda: partial(compose, anthropic()),
}


def longest_hold(step: Callable[[], object]) -> float:
    """Seconds of its thread's CPU time that passed at most between two calls or returns, of C functions as well."""
    longest, last = 0.0, 0.0

    def look(frame: FrameType, event: str, argument: object) -> None:
        nonlocal longest, last
        longest = max(longest, time.thread_time() - last)
        last = time.thread_time()

    def run() -> None:
        nonlocal last
        last = time.thread_time()
        sys.setprofile(look)
        step()
        sys.setprofile(None)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return longest


@pytest.mark.parametrize("name", STEPS)
def test_no_step_holds_up_others_much_longer_than_one_pass_of_the_parser(name: str) -> None:
    step = STEPS[name]()
    one_pass = partial(msgspec.json.decode, bodies().think)

    # In turn, as the machine's speed changes with what its neighbours do. It is 1.2 passes at most, undivided 6 to 15.
    ratios = (longest_hold(step) / longest_hold(one_pass) for _ in range(5))

    assert any(ratio < 3 for ratio in ratios)


@pytest.mark.parametrize("kind", ["think", "schema"])
def test_a_parsed_question_is_not_measured_again(kind: str) -> None:
    question = parse_think(getattr(bodies(), kind), "m").question
    one_pass = partial(msgspec.json.decode, bodies().think)
    sizes: list[int] = []

    ratios = (
        longest_hold(lambda: sizes.append(question.for_model("another", 100).size)) / longest_hold(one_pass)
        for _ in range(5)
    )

    assert any(ratio < 0.1 for ratio in ratios)
    assert min(sizes) > len(IMAGE)


def test_an_image_is_whole_on_its_way_in() -> None:
    [message] = request.parse_request(bodies().chat, "m").question.messages

    assert message.images == [Image(IMAGE, "image/png")]
