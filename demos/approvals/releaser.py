"""An agent that makes a release: some steps wait until a person has agreed. It says what came of each."""

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from agentos_sdk import AgentOSClient

with open("/workspace/release.txt", "w") as file:  # its own file, written without the kernel
    file.write("version 0.9\nreleased by hand\n")

with AgentOSClient() as kernel:
    kernel.write_file("build.sh", "echo built $(cat release.txt)\n")
    steps: Sequence[Callable[[], dict[str, Any]]] = (
        lambda: kernel.write_file("release.txt", "version 1.0\nreleased by hand\n"),
        lambda: kernel.exec("sh build.sh"),
        lambda: kernel.exec("sh build.sh"),
        lambda: kernel.exec("git push --force origin main # \x1b[2K\x1b[Ggit status \u202e"),
        lambda: kernel.http(f"http://127.0.0.1:{sys.argv[1]}/releases?draft=no", "POST", body={"version": "1.0"}),
    )
    for step in steps:
        reply = step()
        print(json.dumps({"code": "ok" if reply["success"] else reply["code"]}), flush=True)
    kernel.recv_messages(timeout=60)  # stays alive, so that its permissions can be looked at
