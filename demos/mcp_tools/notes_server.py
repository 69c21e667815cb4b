"""An MCP server with one tool, in the standard library: JSON-RPC, a message a line. With an SDK it starts slower."""

import json
import sys

DESCRIPTION = "Add a note."
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
INFO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "notes", "version": "1"},
}

for line in sys.stdin:
    message = json.loads(line)
    match message:
        case {"method": "initialize"}:
            answer: dict[str, object] = {"result": INFO}
        case {"method": "tools/list"}:
            answer = {"result": {"tools": [{"name": "add", "description": DESCRIPTION, "inputSchema": SCHEMA}]}}
        case {"method": "tools/call", "params": {"arguments": {"text": str(text)}}}:
            answer = {"result": {"content": [{"type": "text", "text": f"noted: {text}"}]}}
        case {"id": _}:
            answer = {"error": {"code": -32601, "message": "no such method"}}
        case _:
            continue  # a notification
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)
