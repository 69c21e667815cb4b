"""OpenAI's embeddings: requests as questions to ``embed``, and their answers as JSON. No I/O.

Vectors are encoded one by one, so that other threads can run meanwhile.
"""

import base64
from collections.abc import Sequence

from attrs import frozen

from agentos.gateways.left_out import known, list_left_out
from agentos.gateways.request_fields import Asked, Fields, Mistake, read_fields
from agentos.llm.answers.vectors import unpack_vector
from agentos.llm.providers.provider import Answer, Message, Question
from agentos_sdk.encoding import codec
from agentos_sdk.encoding.strict import Unexpected

FORMATS = ("float", "base64")
KNOWN = known("model", "input", "encoding_format", "dimensions", "user")


@frozen
class EmbeddingsRequest(Asked):
    in_base64: bool = False


def parse_request(body: bytes, model: str, provider: str) -> EmbeddingsRequest:
    """Parse a request; ``model`` is used if it names none. Slow if ``body`` is large. Raises :class:`BadRequest`."""
    request = read_fields(body)
    wanted = request.text("encoding_format") or "float"
    if wanted not in FORMATS:
        raise Mistake("encoding_format", str(Unexpected(wanted, *FORMATS)))
    question = Question(
        model=request.text("model") or model,
        messages=[Message("user", text) for text in _texts(request)],
        max_tokens=1,  # none is generated; a budget reserves no more than this
        embed=True,
        dimensions=request.whole("dimensions"),
    )
    return EmbeddingsRequest(question, left_out=list_left_out(request, KNOWN), in_base64=wanted == "base64")


def encode_response(asked: EmbeddingsRequest, answer: Answer, cost: float | None) -> bytes:
    """The response. Slow if there are many vectors."""
    vectors = b",".join(
        b'{"object":"embedding","index":%d,"embedding":%s}' % (index, _encode(vector, asked.in_base64))
        for index, vector in enumerate(answer.vectors)
    )
    usage = {"prompt_tokens": answer.usage.input, "total_tokens": answer.usage.total}
    end = codec.encode({"model": answer.model, "usage": {**usage, **({} if cost is None else {"cost": cost})}})
    return b'{"object":"list","data":[%s],%s' % (vectors, end[1:])


def _encode(vector: bytes, in_base64: bool) -> bytes:
    if in_base64:
        return b'"%s"' % base64.b64encode(vector)
    return codec.encode(unpack_vector(vector).tolist())


def _texts(request: Fields) -> Sequence[str]:
    given = request.data.get("input")
    texts = [given] if isinstance(given, str) else given
    if type(texts) is not list or not texts:
        raise Mistake("input", str(Unexpected(given, "a text", "an array of texts")))
    for index, text in enumerate(texts):
        if type(text) is not str or not text:
            numbers = ": send text, not the numbers of tokens" if type(text) in (int, list) else ""
            raise Mistake(f"input[{index}]", f"{Unexpected(text, 'a text')}{numbers}")
    return texts
