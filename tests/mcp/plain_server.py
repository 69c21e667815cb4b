"""An MCP server of the older era without the SDK, for the tests: it asks its client, and breaks every rule on request.

Each tool is a function here; what it returns is the text of the result, None for no result at all.
"""

import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

numbers = itertools.count(1000)
log: list[str] = []
delays: list[float] = []  # of the next lists of tools
claims: dict[str, Any] = {}  # the _meta of each list of tools


def write(message: object) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def write_raw(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def read() -> dict[str, Any]:
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    message: dict[str, Any] = json.loads(line)
    return message


def reply(number: object, result: object) -> None:
    write({"jsonrpc": "2.0", "id": number, "result": result})


def text(words: object) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": str(words)}]}


def ask(method: str, params: dict[str, Any]) -> Any:
    """The client's answer to a request."""
    number = next(numbers)
    write({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
    while (message := read()).get("id") != number or "method" in message:
        log.append(message.get("method", "?"))
    return message.get("result", message.get("error"))


def echo(number: object, given: dict[str, Any]) -> object:
    return given.get("text", "")


def variable(number: object, given: dict[str, Any]) -> object:
    return os.environ.get(given["name"], "")


def roots(number: object, given: dict[str, Any]) -> object:
    return json.dumps(ask("roots/list", {}))


def sample(number: object, given: dict[str, Any]) -> object:
    said = [{"role": "user", "content": {"type": "text", "text": given["text"]}}]
    return json.dumps(ask("sampling/createMessage", {"messages": said, "maxTokens": 50}))


def elicit(number: object, given: dict[str, Any]) -> object:
    schema = {
        "type": "object",
        "properties": {"sure": {"type": "boolean"}},
        "required": ["sure"],
        **given.get("form", {}),
    }
    return json.dumps(ask("elicitation/create", {"message": given["text"], "requestedSchema": schema}))


def ask_and_withdraw(number: object, given: dict[str, Any]) -> object:
    """Asks a person some questions, and withdraws each when it waits."""
    for count in range(given["count"]):
        schema = {"type": "object", "properties": {}}
        params = {"message": f"Question {count}?", "requestedSchema": schema}
        asked = next(numbers)
        write({"jsonrpc": "2.0", "id": asked, "method": "elicitation/create", "params": params})
        time.sleep(0.02)
        write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": asked}})
    return "done"


def elicit_text(number: object, given: dict[str, Any]) -> object:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    return json.dumps(ask("elicitation/create", {"message": "Your name?", "requestedSchema": schema}))


def change(number: object, given: dict[str, Any]) -> object:
    """Describe a tool in another way from now on, and say so."""
    TOOLS["echo"] = (echo, given["text"])
    write({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
    return "changed"


def endless(number: object, given: dict[str, Any]) -> object:
    while True:
        write_raw(b"x" * (1 << 16))


def flood(number: object, given: dict[str, Any]) -> object:
    note = json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}})
    for _ in range(1000):
        write_raw((note + "\n").encode() * 1000)
    return "done"


def many_requests(number: object, given: dict[str, Any]) -> object:
    for _ in range(200):
        write({"jsonrpc": "2.0", "id": next(numbers), "method": "roots/list"})
    answers = [read() for _ in range(200)]
    return json.dumps(sorted({"error" if "error" in answer else "result" for answer in answers}))


def large_request(number: object, given: dict[str, Any]) -> object:
    return json.dumps(ask("sampling/createMessage", {"messages": [], "maxTokens": 1, "metadata": {"x": "x" * 100_000}}))


def many_schemas(number: object, given: dict[str, Any]) -> object:
    """Has tools with large schemas from now on."""
    SCHEMA["properties"] = {str(n): {"type": "string"} for n in range(3000)}
    write({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
    return "changed"


def late_change(number: object, given: dict[str, Any]) -> object:
    """As ``change``, and the next list of the tools takes long."""
    delays.append(given["seconds"])
    return change(number, given)


def claim(number: object, given: dict[str, Any]) -> object:
    """The next lists of tools have this ``_meta``."""
    claims.update(given["meta"])
    write({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
    return "claimed"


def crowded(number: object, given: dict[str, Any]) -> object:
    head = json.dumps({"jsonrpc": "2.0", "id": number})[:-1] + ', "result": {"content": [], "x": ['
    write_raw(head.encode() + b"[]," * 1_300_000 + b"0]}}\n")
    return None


def own_error(number: object, given: dict[str, Any]) -> object:
    write({"jsonrpc": "2.0", "id": number, "error": {"code": -32000, "message": "out of paper"}})
    return None


def unread(number: object, given: dict[str, Any]) -> object:
    """Asks without end, and reads no answer."""
    while True:
        write({"jsonrpc": "2.0", "id": next(numbers), "method": "ping"})


def wrong_id(number: object, given: dict[str, Any]) -> object:
    for wrong in (999_999, "x", -1):
        reply(wrong, text("a lie"))
    return None


def twice(number: object, given: dict[str, Any]) -> object:
    reply(number, text("first"))
    return "second"


def wrong_schema(number: object, given: dict[str, Any]) -> object:
    reply(number, {"content": [{"type": "poem", "verse": 7}], "isError": "perhaps"})
    return None


def no_json(number: object, given: dict[str, Any]) -> object:
    print("Hello, I am a banner\x1b[2J", flush=True)
    return "after the banner"


def no_rpc(number: object, given: dict[str, Any]) -> object:
    write_raw(b"[1, 2]\n")
    return None


def deep(number: object, given: dict[str, Any]) -> object:
    write_raw(b'{"jsonrpc": "2.0", "id": 1, "result": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n")
    return None


def hang(number: object, given: dict[str, Any]) -> object:
    print("hanging", file=sys.stderr, flush=True)
    message = read()
    log.append(message["method"])
    return None


def past(number: object, given: dict[str, Any]) -> object:
    return " ".join(log)


def deaf(number: object, given: dict[str, Any]) -> object:
    time.sleep(1000)
    return None


def die(number: object, given: dict[str, Any]) -> object:
    os._exit(3)


def close(number: object, given: dict[str, Any]) -> object:
    os.close(1)
    time.sleep(1000)
    return None


def large(number: object, given: dict[str, Any]) -> object:
    parts = [{"type": "text", "text": "x"}] * 20_000
    reply(number, {"content": parts, "structuredContent": {"many": list(range(10))}})
    return None


def slow_pattern(number: object, given: dict[str, Any]) -> object:
    """Would take years to check against the schema of its output."""
    reply(number, {**text("a"), "structuredContent": {"word": "a" * 40 + "!"}})
    return None


Tool = Callable[[object, dict[str, Any]], object]
TOOLS: dict[str, tuple[Tool, str]] = {
    tool.__name__: (tool, "A tool")
    for tool in (
        *(
            echo,
            variable,
            roots,
            sample,
            elicit,
            elicit_text,
            ask_and_withdraw,
            change,
            late_change,
            claim,
            crowded,
            own_error,
            unread,
            endless,
            flood,
            many_requests,
            large_request,
            many_schemas,
            wrong_id,
            twice,
        ),
        *(wrong_schema, no_json, no_rpc, deep, hang, past, deaf, die, close, large, slow_pattern),
    )
}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}}
SLOW = {"type": "object", "properties": {"word": {"type": "string", "pattern": "^(a+)+$"}}}


def list_tools() -> list[dict[str, Any]]:
    return [
        {"name": name, "description": said, "inputSchema": SCHEMA, "outputSchema": SLOW}
        for name, (_, said) in TOOLS.items()
    ]


def serve() -> None:
    while True:
        message = read()
        method, number = message.get("method"), message.get("id")
        if method == "initialize":
            about = {"protocolVersion": "2025-11-25", "serverInfo": {"name": "plain", "version": "1"}}
            reply(number, {**about, "capabilities": {"tools": {"listChanged": True}}})
        elif method == "tools/list":
            time.sleep(delays.pop() if delays else 0)
            after = int(message.get("params", {}).get("cursor", 0))
            page = {"tools": list_tools()[after : after + 10], "_meta": claims}
            reply(number, page if after + 10 >= len(TOOLS) else {**page, "nextCursor": str(after + 10)})
        elif method == "tools/call":
            tool, _ = TOOLS[message["params"]["name"]]
            answer = tool(number, message["params"].get("arguments", {}))
            if answer is not None:
                reply(number, text(answer))
        elif number is not None:
            write({"jsonrpc": "2.0", "id": number, "error": {"code": -32601, "message": "Method not found"}})
        else:
            log.append(str(method))


if __name__ == "__main__":
    serve()
