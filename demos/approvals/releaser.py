"""An agent that makes a release: some steps wait until a person has agreed. It says what came of each."""

import json

from agentos_sdk import AgentOSClient

with AgentOSClient() as kernel:
    kernel.write_file("build.sh", "echo built $(cat release.txt)\n")
    kernel.write_file("release.txt", "0.9\n", "append")  # asked about: the file is a new one
    kernel.write_file("release.txt", "1.0\n")  # asked about: the person sees what changes
    steps = (
        lambda: kernel.exec("sh build.sh"),
        lambda: kernel.exec("sh build.sh"),
        lambda: kernel.exec("git push --force origin main; echo '\x1b[2J\u202esafe\x1b[m'"),
    )
    for step in steps:
        reply = step()
        print(json.dumps({"code": "ok" if reply["success"] else reply["code"], **reply}), flush=True)
    kernel.recv_messages(timeout=60)  # stays alive, so that its permissions can be inspected
