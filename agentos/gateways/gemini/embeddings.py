"""Gemini's embeddings: requests as questions to ``embed``, and their answers as JSON. No I/O."""

from collections.abc import Sequence

from agentos.gateways.left_out import known, list_left_out
from agentos.gateways.request_fields import Asked, Mistake, read_fields
from agentos.llm.answers.vectors import unpack_vector
from agentos.llm.providers.provider import Answer, Message, Question
from agentos_sdk.encoding import codec
from agentos_sdk.encoding.strict import Unexpected

from .contents import texts_of
from .fields import GoogleFields

KNOWN = known(
    *("model", "outputDimensionality"),
    content=known("role", parts=known("text", "partMetadata")),
    embedContentConfig=known("outputDimensionality"),
)


def parse_one(body: bytes, model: str, provider: str) -> Asked:
    """Parse a request for one vector. Slow if ``body`` is large; raises :class:`BadRequest`."""
    request = GoogleFields(read_fields(body).data)
    return Asked(_question([request], model), left_out=list_left_out(request, KNOWN))


def parse_batch(body: bytes, model: str, provider: str) -> Asked:
    """Parse a request for many, as :func:`parse_one`."""
    request = GoogleFields(read_fields(body).data)
    requests = [*request.objects("requests")]
    if not requests:
        raise Mistake("requests", "expected at least one request")
    return Asked(_question(requests, model), left_out=list_left_out(request, known(requests=KNOWN)))


def _question(requests: Sequence[GoogleFields], model: str) -> Question:
    dimensions = {_dimensions(each) for each in requests}
    if len(dimensions) > 1:
        raise Mistake("requests[1].outputDimensionality", "expected the same in all requests")
    messages = [Message("user", _text(each, model)) for each in requests]
    return Question(model, messages, max_tokens=1, embed=True, dimensions=dimensions.pop())


def _text(request: GoogleFields, model: str) -> str:
    named = (request.text("model") or model).removeprefix("models/")
    if named != model:
        raise Mistake(request.place("model"), str(Unexpected(named, f"{model}, as in the path")))
    content = request.required_object("content")
    text = texts_of(content)
    if not text:
        raise Mistake(content.place("parts"), "expected some text")
    return text


def _dimensions(request: GoogleFields) -> int | None:
    config = request.object("embedContentConfig") or request
    return request.whole("outputDimensionality") or config.whole("outputDimensionality")


def encode_one(answer: Answer, cost: float | None) -> bytes:
    return b'{"embedding":%s,%s' % (_vectors(answer), _end(answer, cost))


def encode_batch(answer: Answer, cost: float | None) -> bytes:
    """The response. Slow if there are many vectors."""
    return b'{"embeddings":[%s],%s' % (_vectors(answer), _end(answer, cost))


def _vectors(answer: Answer) -> bytes:
    """One by one, so that other threads can run meanwhile."""
    return b",".join(b'{"values":%s}' % codec.encode(unpack_vector(vector).tolist()) for vector in answer.vectors)


def _end(answer: Answer, cost: float | None) -> bytes:
    usage = {"promptTokenCount": answer.usage.input, **({} if cost is None else {"cost": cost})}
    return codec.encode({"usageMetadata": usage})[1:]
