"""The program of an agent that works on one task: ``python3 -m agentos_sdk.loop.program``, in a jail.

The task and its settings are in the environment variable ``LOOP_TASK``, as JSON. Each step is a line of the agent's
output. The last line is the result; the exit status is 0, however the task has ended, as it isn't to be restarted.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from agentos_sdk.blocking import AgentOSClient
from agentos_sdk.opcodes import Op

from .blocking_driver import BlockingDriver
from .engine.budget import Budget
from .engine.driving import Options, drive
from .engine.result import LoopError, TaskResult
from .instructions import INSTRUCTION
from .tools.call_tools import RESULT_LINE
from .tools.tools import shorten

MAX_LINE = 2000  # characters of the result in the agent's output


def main() -> None:
    # Readers of the log need each line at once; halves of surrogate pairs are escaped.
    sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    settings = json.loads(os.environ.pop("LOOP_TASK"))  # not for the commands that the agent runs
    options = Options(
        Budget.of(settings["budget"]),
        settings.get("model"),
        instruction=settings.get("instruction") or INSTRUCTION,
        text_protocol=settings.get("text_protocol"),
        on_step=print_step,
        depth=settings.get("depth", 0),
        is_steered=settings.get("is_steered", False),
        said=settings.get("said"),
        compact_at=settings.get("compact_at"),
    )
    with AgentOSClient() as client:
        driver = BlockingDriver(client)
        me = driver.me()
        try:
            result = driver.run(drive(options, me, settings["task"], settings["id"]))
        except LoopError as error:  # a restart would meet it again, and ask the model again
            result = TaskResult("failed", "", settings["id"], me.name, 0, 0, None, str(error))
            end = {"task": settings["id"], "step": 0, "kind": "end", **result._asdict()}
            client.request(Op.EMIT, {"event_type": "TASK_STEP", "data": end})  # there may be no record of it
    shown = {**result._asdict(), **{name: shorten(getattr(result, name), MAX_LINE) for name in ("summary", "reason")}}
    print(RESULT_LINE + json.dumps(shown, ensure_ascii=False), flush=True)


def print_step(step: dict[str, Any]) -> None:
    match step:
        case {"kind": "thought", "text": text} if text.strip():
            print_text(f"step {step['step']}: {text}")
        case {"kind": "call", "call": name, "arguments": arguments}:
            print_text(f"step {step['step']}: {name} {json.dumps(arguments, ensure_ascii=False)}")
        case {"kind": "result", "call": name, "ok": ok, "result": text}:
            print_text(f"step {step['step']}: {name} {'returned' if ok else 'failed'}: {text}")


def print_text(text: str) -> None:
    """Print a text whose further lines are indented, so that none of them can look like a result."""
    print("\n    ".join(text.splitlines()))


if __name__ == "__main__":
    main()
