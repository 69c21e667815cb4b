"""Sources and workspaces on a kernel of another age, whose files can't be mapped and which has no loop devices."""

import sys

from tests.support.guest import RunInGuest

OPEN_TO_ALL = """
import os, tempfile
from pathlib import Path
import trio
from agentos.agents.workspaces.workspace import Workspaces
from agentos.sandbox.errors import StepFailed
from agentos.sandbox.policy import Limits
from agentos.sandbox.start.spawner import Spawner
from agentos_sdk.values import HostIds
from tests.sandbox import jail

async def main(spawner, place):
    os.mkdir(place / "state"); os.mkdir(place / "project"); os.mkdir(place / "project" / ".git")
    workspaces, who = Workspaces(place / "state", True), HostIds(1610700000, 1610700000)
    kept = await workspaces.prepare("a", "keep", Limits(), who)
    print(kept.kind, "|", kept.reason)
    project = await workspaces.prepare("a", str(place / "project"), Limits(), who)
    try:
        await spawner.spawn(jail.a_plan("/bin/true", workspace=project.mount))
    except StepFailed as failure:
        print(failure)
    os.chmod(place / "project", 0o777)
    code = "echo x > file; echo x > .envrc; rm -rf .vscode; mv .git x; cat file"
    print((await jail.run(spawner, jail.a_plan("/bin/sh", "-c", code, workspace=project.mount))))
    await workspaces.release(project)
    print(sorted(os.listdir(place / "project")))

spawner = Spawner.start()
with tempfile.TemporaryDirectory(prefix="aos-", dir="/tmp") as place:
    trio.run(main, spawner, Path(place))
spawner.close()
"""


def test_with_root_what_cannot_be_had_there_is_told(guest: RunInGuest) -> None:
    ended = guest(sys.executable, "-c", OPEN_TO_ALL)

    assert ended.out, ended.err
    kept, refused, done, left = ended.out.splitlines()
    assert kept.startswith("directory | "), ended.err
    assert "/dev/loop-control" in kept or "e2fsprogs" in kept
    assert "its files can't be mapped to another user: chown it to" in refused
    assert "out='x\\n'" in done
    assert done.count("Read-only file system") >= 1
    assert done.count("busy") >= 2
    assert left == "['.git', 'file']"
