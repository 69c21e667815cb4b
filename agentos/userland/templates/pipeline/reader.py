"""First stage: sends every line of input.txt to the counter."""

from agentos_sdk import AgentOSClient

with AgentOSClient() as kernel, open("/agent/input.txt") as file:
    lines = file.read().splitlines()
    for number, line in enumerate(lines, 1):
        reply = kernel.send_message({"line": number, "of": len(lines), "text": line}, to_name="counter")
        if not reply["success"]:
            raise SystemExit(f"line {number} was not delivered: {reply['error']}")
    print(f"{len(lines)} lines sent", flush=True)
