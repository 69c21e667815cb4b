"""``python -m demos.code_review``: a reviewer finds an SQL injection in a file that it can read and not change."""

import hashlib
import shutil
import tempfile
from pathlib import Path

from agentos_sdk import AgentOSClient
from demos import stage
from demos.printing_client import format_reply

HERE = stage.HERE / "code_review"
TITLE = "Code review: it finds the SQL injection, and can't touch the file"


def demo(config: Path | None) -> None:
    with tempfile.TemporaryDirectory(prefix="aos-", dir="/var/tmp") as place:  # /tmp is another directory in a jail
        code = Path(shutil.copy(HERE / "shop.py", place))
        before = hashlib.sha256(code.read_bytes()).hexdigest()
        with stage.kernel(config) as running, AgentOSClient(running.socket) as client:
            review(client, code)
            running.stop()
        after = hashlib.sha256(code.read_bytes()).hexdigest()
    stage.say(f"SHA-256 of {code.name} before and after: {before[:16]}…, {after[:16]}…")
    stage.check(before == after, "the file is unchanged")
    stage.heading("What to notice")
    stage.notice("The operator may write that file. The reviewer may not, and no command in its jail sees it.")


def review(client: AgentOSClient, code: Path) -> None:
    stage.heading("A reviewer with one right: to read this file")
    rules = {"level": "sandboxed", "allow": {"read": [str(code)]}}
    stage.say(f"permissions: {format_reply(rules)}")
    spawned = client.spawn("reviewer", str(HERE / "reviewer.py"), args=[str(code)], permissions=rules)
    stage.check(spawned["success"], f"the agent starts: {spawned.get('error')}")
    stage.check(client.wait("reviewer", timeout=stage.PATIENCE)["success"], "the reviewer ends")
    said = stage.said(client, "reviewer")
    for line in said:
        stage.say(f"    reviewer | {line}")
    lines = code.read_text().splitlines()
    defect = next(number for number, line in enumerate(lines, 1) if 'execute(f"' in line)
    stage.check(f"line {defect}" in said[0] and "inject" in said[0].lower(), "the defect is found")
    stage.heading("What the audit log has of that file")
    found = stage.audited(client, "files", 2, about=str(code), phase="outcome")
    for entry in found:
        stage.say(f"    {entry['call']:5} {entry['decision']:5} by: {entry['rule']}")
    decisions = {(entry["call"], entry["decision"]) for entry in found}
    stage.check(decisions == {("READ", "allow"), ("WRITE", "deny")}, "it was read, and a change was refused")


stage.run_demo_with_model(demo, HERE / "agentos.toml", TITLE)
