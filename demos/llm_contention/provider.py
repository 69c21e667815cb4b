"""The same simulated model behind HTTP on loopback, for programs that call it directly.

It works on one question at a time. At ``/turn-away`` a request meanwhile gets 429, as from a provider that has no
room; at ``/queue`` all wait, first come first served.
"""

import json
import sys
from typing import Any

import trio
from attrs import define, field
from hypercorn.config import Config
from hypercorn.trio import serve

from agentos.config.load import load
from agentos.llm.providers.offline import Offline
from agentos.llm.providers.offline_rules import read_rules
from agentos.llm.providers.provider import Answer, Message, Question


@define
class Provider:
    model: Offline
    one_at_a_time: trio.Lock = field(factory=trio.Lock)  # fair: waiting requests are served in order

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http", "of lifespan nothing is known here, and hypercorn goes on without"
        body = b""
        while (event := await receive())["type"] == "http.request":
            body += event["body"]
            if not event.get("more_body"):
                break
        if scope["path"] == "/turn-away" and self.one_at_a_time.locked():
            await respond(send, 429, {"error": "too many requests"})
        else:
            await respond(send, 200, await self.answer(json.loads(body)["prompt"]))

    async def answer(self, prompt: str) -> dict[str, Any]:
        question = Question("offline", [Message("user", prompt)])
        async with self.one_at_a_time:
            began = trio.current_time()
            answer: Answer = await self.model.answer(question, lambda _: None)
            worked = 1000 * (trio.current_time() - began)
        usage = {"input": answer.usage.input, "output": answer.usage.output, "thinking": answer.usage.thinking}
        return {"success": True, "tokens": answer.usage.total, "usage": usage, "worked_ms": worked}


async def respond(send: Any, status: int, body: dict[str, Any]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})


async def main(file: str) -> None:
    settings = load(file).llm.offline
    assert settings.rules is not None, "its answers are in a file of rules"
    model = Offline(settings, read_rules(settings.rules))
    config = Config()
    config.bind = ["127.0.0.1:0"]
    config.errorlog = None
    async with trio.open_nursery() as nursery:
        [url] = await nursery.start(serve, Provider(model), config)
        print(url, flush=True)
        await trio.lowlevel.wait_readable(sys.stdin)  # end of file: the parent process has ended
        nursery.cancel_scope.cancel()


trio.run(main, sys.argv[1])
