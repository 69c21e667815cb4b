"""The provider of all setups, a process that speaks OpenAI's protocol on loopback: it calls the tool a task needs."""

import json
import re
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

import h11
import trio

from tests.speed.llm.simulation.simulator import EVENT_STREAM, Exchange, Gone

SECONDS = 0.1  # that an answer takes
SLOTS = 4  # answers at a time


def answer(body: Mapping[str, Any]) -> dict[str, Any]:
    """The message of the model: a call of a tool for a task, a sentence for the result of a tool."""
    last = body["messages"][-1]
    text = last["content"]
    if not isinstance(text, str):
        text = "".join(part["text"] for part in text)
    if last["role"] == "tool":
        return {"role": "assistant", "content": f"The answer is {text}."}
    numbers = [int(one) for one in re.findall(r"\d+", text)]
    arguments: dict[str, object]
    if text.startswith("What is"):
        tool, arguments = "add", dict(zip("ab", numbers, strict=True))
    elif text.startswith("Factor"):
        tool, arguments = "factor", {"number": numbers[0]}
    elif text.startswith("Remember"):
        tool, arguments = "remember", {"text": text}
    else:
        tool, arguments = "report", {"title": text}
    call = {"id": "call", "type": "function", "function": {"name": tool, "arguments": json.dumps(arguments)}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def completion(body: Mapping[str, Any], *, streamed: bool) -> dict[str, Any]:
    message = answer(body)
    reason = "tool_calls" if "tool_calls" in message else "stop"
    if streamed:
        message["tool_calls"] = [{"index": 0, **call} for call in message.get("tool_calls", ())] or None
    choice = {"index": 0, "delta" if streamed else "message": message, "finish_reason": reason}
    return {
        "id": "chatcmpl-compare",
        "object": "chat.completion.chunk" if streamed else "chat.completion",
        "created": 0,
        "model": body["model"],
        "choices": [choice],
        "usage": {"prompt_tokens": 20, "completion_tokens": 10, "total_tokens": 30},
    }


async def serve(slots: trio.Semaphore, stream: trio.SocketStream) -> None:
    exchange = Exchange(stream)
    try:
        while (request := await exchange.request()) is not None:
            body = json.loads(request[1])
            async with slots:
                await trio.sleep(SECONDS)
            if not body.get("stream"):
                await exchange.whole(200, completion(body, streamed=False))
                continue
            await exchange.begin(200, EVENT_STREAM)
            line = json.dumps(completion(body, streamed=True))
            await exchange.send(h11.Data(data=f"data: {line}\n\ndata: [DONE]\n\n".encode()))
            await exchange.send(h11.EndOfMessage())
    except (Gone, h11.ProtocolError):
        pass


async def main() -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    print(f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/v1", flush=True)
    await trio.serve_listeners(partial(serve, trio.Semaphore(SLOTS)), listeners)


if __name__ == "__main__":
    sys.exit(trio.run(main))
