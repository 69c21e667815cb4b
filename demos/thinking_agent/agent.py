"""An agent with a model: it receives questions, asks the model, calls its tool, and streams the answer.

The model is behind the kernel: there is no key here, and no network.
"""

import os
import struct
import zlib
from base64 import b64encode
from collections.abc import Callable
from typing import Any

from agentos import AgentOSClient
from agentos_sdk.errors import CallError

SYSTEM = "You are a friendly agent in a demonstration. Answer in one or two sentences. To multiply, use your tool."
ROUNDS = 5  # rounds of tool calls before an answer is required
SIZE = 64  # pixels, of the picture

Tell = Callable[[Any], Any]


def multiply(a: int, b: int) -> str:
    return str(int(a) * int(b))


TOOLS = {"multiply": multiply}
NUMBER = {"type": "integer"}
DESCRIPTION = {
    "name": "multiply",
    "description": "The exact product of two whole numbers.",
    "parameters": {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}, "required": ["a", "b"]},
}


def picture() -> bytes:
    """A red disc on white, as a PNG."""
    half = SIZE / 2
    rows = b""
    for y in range(SIZE):
        inside = [(x - half) ** 2 + (y - half) ** 2 < (half * 0.8) ** 2 for x in range(SIZE)]
        rows += b"\0" + b"".join(b"\xd0\x20\x20" if red else b"\xff\xff\xff" for red in inside)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", SIZE, SIZE, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def build_turn(message: dict[str, Any]) -> dict[str, Any]:
    """A question as a message of the conversation."""
    content: list[dict[str, str]] = [{"type": "text", "text": message["say"]}]
    if message.get("picture"):
        content.append({"type": "image", "data": b64encode(picture()).decode(), "mime_type": "image/png"})
    return {"role": "user", "content": content}


def answer(kernel: AgentOSClient, conversation: list[dict[str, Any]], tell: Tell) -> None:
    for _ in range(ROUNDS):
        with kernel.think_stream(messages=conversation, system_instruction=SYSTEM, tools=[DESCRIPTION]) as deltas:
            for delta in deltas:
                tell({"delta": delta})
        thought = deltas.thought
        assert thought is not None, "the stream has come to its end"
        calls = thought["tool_calls"]
        conversation.append({"role": "assistant", "content": thought["content"], "tool_calls": calls})
        if not calls:
            tell({"done": {name: thought[name] for name in ("model", "tokens", "latency_ms")}})
            return
        for call in calls:
            result = call_tool(call["name"], call["arguments"])
            tell({"used": call["name"], "with": call["arguments"], "result": result})
            conversation.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    tell({"error": f"the model wanted its tools {ROUNDS} times and didn't answer"})


def call_tool(name: str, arguments: dict[str, Any]) -> str:
    """Call a tool; an error is returned as text, so that the model can correct its call."""
    try:
        return TOOLS[name](**arguments)
    except (KeyError, TypeError, ValueError) as error:
        return f"error: {error!r}"


def main() -> None:
    conversation: list[dict[str, Any]] = []
    with AgentOSClient() as kernel:
        print("keys in my environment:", [name for name in os.environ if "KEY" in name], flush=True)
        while True:
            for message in kernel.recv_messages(max_messages=1, timeout=60)["messages"]:

                def tell(message: object, to: int = message["from_id"]) -> None:
                    kernel.send_message(message, to=to)

                conversation.append(build_turn(message["message"]))
                try:
                    answer(kernel, conversation, tell)
                except CallError as error:
                    tell({"error": str(error)})


main()
