"""The endpoint of an agent as an ASGI application whose client fails in the middle of a response."""

import json
from typing import Any

import pytest
import trio

from agentos.gateways.endpoint import Endpoint
from agentos.kernel.caller import Allowance
from agentos.llm.providers.offline_rules import Rule
from tests.gateways.served import MODEL, served

BODY = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}


@pytest.mark.parametrize("stream", [False, True])
async def test_nothing_more_is_said_in_a_response_that_failed_in_the_middle(stream: bool) -> None:
    body = json.dumps({**BODY, "stream": stream}).encode()
    arriving: list[Any] = [{"type": "http.request", "body": body, "more_body": False}]
    sent = list[str]()

    async def receive() -> Any:
        return arriving.pop() if arriving else await trio.sleep_forever()

    async def send(event: Any) -> None:
        sent.append(event["type"])
        if event["type"] == "http.response.body":
            raise ZeroDivisionError

    async with served(Rule(reply="one two")) as here:
        scope: Any = {
            "type": "http",
            "method": "POST",
            "path": "/v1/chat/completions",
            "query_string": b"",
            "headers": [],
        }
        await Endpoint(here.common, here.caller, Allowance(), None)(scope, receive, send)

    assert sent.count("http.response.start") == 1
    assert sent[0] == "http.response.start"
