"""Images that are encoded while they are sent."""

import base64
import json

import httpx2

from agentos.llm.providers.prompts.base64_parts import SLICE, Base64Parts
from tests.support.runs.rows import each_row


async def sent(request: httpx2.Request) -> bytes:
    assert isinstance(request.stream, httpx2.AsyncByteStream)
    return b"".join([chunk async for chunk in request.stream])


@each_row("size", [0, 1, SLICE - 1, SLICE, 3 * SLICE + 2])
async def test_each_image_is_in_the_place_of_its_token(size: int) -> None:
    images = [bytes(range(256)) * 3, b"\xff" * size]
    parts = Base64Parts()
    body = {"images": [f"data:image/png;base64,{parts.add(image)}" for image in images], "end": "ë"}
    request = httpx2.Request("POST", "http://vendor.example/", json=body)
    parts.splice(request)

    body["images"] = [f"data:image/png;base64,{base64.b64encode(image).decode()}" for image in images]
    data = await sent(request)
    assert json.loads(data) == body
    assert request.headers["content-length"] == str(len(data))


async def test_a_request_without_images_stays_as_it_was() -> None:
    request = httpx2.Request("POST", "http://vendor.example/", json={"text": "hello"})
    stream = request.stream
    Base64Parts().splice(request)

    assert request.stream is stream
