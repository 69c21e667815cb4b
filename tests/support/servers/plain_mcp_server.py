"""An MCP server in the standard library alone. ``tools.json`` beside it has its tools; without it, it has one.

Each tool answers with its name and the arguments.
"""

import json
import pathlib
import sys

DEFAULT = [{"name": "add", "description": "Add a note.", "inputSchema": {"type": "object"}}]


def tools() -> object:
    file = pathlib.Path(__file__).with_name("tools.json")
    return json.loads(file.read_text()) if file.exists() else DEFAULT


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        method, number = message.get("method"), message.get("id")
        if method == "initialize":
            result: object = {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "plain", "version": "1"},
            }
        elif method == "tools/list":
            result = {"tools": tools()}
        elif method == "tools/call":
            result = {"content": [{"type": "text", "text": json.dumps([message["params"], *sys.argv[1:]])}]}
        elif number is None:
            continue
        else:
            error = {"code": -32601, "message": "no such method"}
            print(json.dumps({"jsonrpc": "2.0", "id": number, "error": error}), flush=True)
            continue
        print(json.dumps({"jsonrpc": "2.0", "id": number, "result": result}), flush=True)


if __name__ == "__main__":
    main()
