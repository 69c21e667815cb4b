"""OpenAI's own client at ``/v1/embeddings``, with every provider that has them."""

import base64
import json
import math
from array import array
from collections.abc import Sequence
from typing import Any

import pytest

from agentos.gateways.openai.embeddings import parse_request
from agentos.llm.answers.embeddings import read_gemini, read_openai
from agentos.llm.answers.malformed import MalformedResponse
from agentos.llm.providers.provider import Message, Question
from agentos.llm.settings import ProviderName
from agentos.services.quotas import Quota
from agentos_sdk.errors import BadRequest
from tests.gateways.served import MODEL, Served, behind, served
from tests.llm.vendors.script import Raw, Refuses, Says
from tests.support.clients import openai
from tests.support.rights import Grants, Notebook
from tests.support.runs.rows import each_row

pytestmark = pytest.mark.filterwarnings("ignore:Async generator '(httpx2|openai|httpcore):ResourceWarning")


async def embed(here: Served, *texts: str, **more: Any) -> list[list[float]]:
    async with here.client(max_retries=0) as client:
        said = await client.embeddings.create(model=MODEL, input=list(texts), **more)
        return [each.embedding for each in said.data]


def closeness(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


async def test_the_offline_provider_embeds_the_same_text_the_same_way_and_alike_ones_closely() -> None:
    async with served() as here:
        first, same, alike, other = await embed(
            here, "the cat sat here", "the cat sat here", "the cat sat there", "prices rose sharply"
        )
        [again] = await embed(here, "the cat sat here")

    assert first == same == again
    assert len(first) == 256
    assert math.isclose(closeness(first, first), 1, rel_tol=1e-5)
    assert closeness(first, alike) > 0.5 > closeness(first, other)


async def test_numbers_are_those_of_the_base64_and_dimensions_are_chosen() -> None:
    async with served() as here:
        told = await embed(here, "some text", encoding_format="float", dimensions=32)
        usual = await embed(here, "some text", dimensions=32)

    assert told == usual
    assert len(told[0]) == 32


@each_row(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": [[1, 2, 3]]}, "input[0]"),
        ({"input": [1, 2]}, "input[0]"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
    ],
)
def test_a_mistake_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as error:
        parse_request(json.dumps(fields).encode(), "m", "openai")

    assert error.value.details["param"] == param


async def test_it_is_charged_recorded_and_refused_as_any_question() -> None:
    notebook = Notebook()
    async with served(budget=[Quota("calls", 1, 86400)], notebook=notebook) as here:
        await embed(here, "a text")
        with pytest.raises(openai.RateLimitError):
            await embed(here, "a text")
    async with served(grants=Grants(denied=["think"])) as here:
        with pytest.raises(openai.PermissionDeniedError):
            await embed(here, "a text")

    assert [(entry.call, entry.outcome) for entry in notebook.entries] == [("THINK", "ok"), ("THINK", "quota_exceeded")]
    assert "in 6, out 0" in notebook.entries[0].about


def openai_body(*vectors: Sequence[float], as_numbers: bool = False) -> bytes:
    """The last vector comes first."""
    encoded: list[Any] = [base64.b64encode(array("f", each).tobytes()).decode() for each in vectors]
    shown = [list(each) for each in vectors] if as_numbers else encoded
    data = [{"object": "embedding", "index": index, "embedding": each} for index, each in enumerate(shown)]
    return json.dumps({"data": data[::-1], "model": "e-1", "usage": {"prompt_tokens": 2, "total_tokens": 2}}).encode()


def gemini_body(*vectors: Sequence[float]) -> bytes:
    return json.dumps({"embeddings": [{"values": list(each)} for each in vectors]}).encode()


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("openai", openai_body((0.5, -1.25), (2.0, 0.0))),
        ("openai", openai_body((0.5, -1.25), (2.0, 0.0), as_numbers=True)),
        ("gemini", gemini_body((0.5, -1.25), (2.0, 0.0))),
    ],
    ids=["openai", "an imitator that has no base64", "gemini"],
)
async def test_a_vendors_embeddings(name: ProviderName, body: bytes) -> None:
    async with behind(name) as (here, vendor):
        vendor.will(Says([Raw(body)], finish=None))
        told = await embed(here, "one", "two", dimensions=2)

    assert told == [[0.5, -1.25], [2.0, 0.0]]
    [exchange] = vendor.exchanges
    question = exchange.question
    assert (question.model, question.embed, question.dimensions) == (MODEL, True, 2)
    assert [message.text for message in question.messages] == ["one", "two"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"data": [{"embedding": [1]}]}',
        openai_body((1.0,), ()),
        openai_body((1.0,), (math.inf,)),
        b'{"data": [{"embedding": "AAAA"}, {"embedding": "?"}]}',
        b'{"data": [{"embedding": [1]}, {"embedding": [' + b"1," * 200_000 + b"1]}]}",
    ],
    ids=lambda body: body[:40].decode(),
)
async def test_what_is_no_embedding_is_the_vendors_failure(body: bytes) -> None:
    async with behind("openai") as (here, vendor):
        vendor.will(Says([Raw(body)], finish=None))
        with pytest.raises(openai.InternalServerError, match="openai sent"):
            await embed(here, "one", "two")


async def test_too_many_texts_never_reach_the_line() -> None:
    async with served() as here, here.client(max_retries=0) as client:
        with pytest.raises(openai.BadRequestError, match="expected at most 2000 messages"):
            await client.embeddings.create(model=MODEL, input=["a"] * 100_000)
        with pytest.raises(openai.BadRequestError, match="expected a name of letters"):
            await client.embeddings.create(model="*" * 100_000, input="a")

    assert here.asked == []


def test_many_tiny_embeddings_are_not_parsed_at_once() -> None:
    asked = Question("m", [Message("user", "one")], embed=True)
    for read, entry, many in (
        (read_openai, b'{"embedding":1}', b"data"),
        (read_gemini, b'{"values":1}', b"embeddings"),
    ):
        body = b'{"%s":[%s]}' % (many, b",".join([entry] * 1000))
        with pytest.raises(MalformedResponse, match="sent 1001 objects as embeddings of 1 texts"):
            read(body, asked)


async def test_a_vendors_refusal_is_passed_on() -> None:
    async with behind("openai") as (here, vendor):
        vendor.will(Refuses(404, "there is no model of this name"))
        with pytest.raises(openai.NotFoundError, match="there is no model of this name"):
            await embed(here, "one")
