"""Reads a file, asks the model what is wrong with it, and then tries to change it, as an injected instruction would."""

import sys

from agentos_sdk import AgentOSClient

SYSTEM = (
    "You review code for security. Answer with one line for each defect: `line N: what is wrong and how to fix it`."
)
path = sys.argv[1]

with AgentOSClient() as kernel:
    code = kernel.read_file(path)["content"]
    numbered = "\n".join(f"{number}: {line}" for number, line in enumerate(code.splitlines(), 1))
    print(kernel.think(numbered, system_instruction=SYSTEM)["content"], flush=True)
    written = kernel.write_file(path, code.replace("execute", "executescript"))
    print("write_file:", written.get("error", "done"), flush=True)
    changed = kernel.exec(f"echo >> {path}")
    print("exec:", changed.get("error") or f"exit status {changed['exit_code']}: {changed['stderr'].strip()}")
