"""What is shown inside is what was named, to whom it was meant, and nothing else, whoever moves names meanwhile."""

# A file in /tmp or /proc keeps nobody waiting here.
# ruff: file-ignore[ASYNC240]

import contextlib
import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentos.sandbox import steps as s
from agentos.sandbox.errors import StepFailed
from agentos.sandbox.plan import plan_sandbox
from agentos.sandbox.policy import Directory, Policy, Program
from agentos.sandbox.report import probe
from agentos.sandbox.start.spawner import Spawner
from agentos.sandbox.steps import Step
from agentos_sdk.values import HostIds
from tests.sandbox import jail
from tests.sandbox.jail import Belongings, a_plan, becomes, run
from tests.support.mounts import mounted
from tests.support.runs.rounds import rounds

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="without root all files are of one user")
OWNER = 4321
CAT = ("/bin/sh", "-c", 'cat "$0" "$@"')

# Changes names as fast as it can: a directory and a link to another, in turn.
SWAPPER = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
print(flush=True)
while True:
    libc.renameat2(-100, sys.argv[1].encode(), -100, sys.argv[2].encode(), 2)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that no other user may enter, of a user of its own where we can choose one."""
    with tempfile.TemporaryDirectory(prefix="aos-", dir="/tmp") as made:
        closed = Path(made, "closed")
        closed.mkdir(mode=0o700)
        yield closed


@pytest.fixture
def maps_files(spawner: Spawner, place: Path) -> bool:
    """Whether the files in this place can be shown as somebody else's."""
    return jail.maps_files(spawner, place)


@pytest.fixture
def mapped(maps_files: bool) -> None:
    if not maps_files:
        pytest.skip("the file system of /tmp has no id-mapped mounts")


def secretly(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def give_away(*paths: Path) -> None:
    for path in paths:
        os.chown(path, OWNER, OWNER)


async def zygote_has_its_own_alone(spawner: Spawner) -> None:
    """Its three streams, its socket and the pipe of a namespace for maps. It answers before it closes what came."""
    await becomes(lambda: len(os.listdir(f"/proc/{spawner.zygote.pid}/fd")), 5)


@pytest.mark.usefixtures("mapped")
@pytest.mark.parametrize("owner", [0, OWNER])
async def test_a_script_that_only_its_owner_can_read_runs(spawner: Spawner, place: Path, owner: int) -> None:
    script = secretly(place / "main.py", "import os; print('ran', os.stat(__file__).st_uid)")
    if os.geteuid() == 0:
        os.chown(script, owner, owner)

    ended = await run(spawner, a_plan(sys.executable, "/agent/main.py", script=str(script)))

    assert (ended.err, ended.out) == ("", "ran 1000\n")


@pytest.mark.usefixtures("mapped")
async def test_code_that_only_its_owner_can_read_is_read_and_not_written(spawner: Spawner, place: Path) -> None:
    secretly(place / "a", "text\n")
    before = (place.stat(), (place / "a").stat())
    attack = "cat /agent/a; echo x >> /agent/a; echo x > /agent/b; rm -f /agent/a; chmod 777 /agent/a /agent"

    ended = await run(spawner, a_plan("/bin/sh", "-c", attack, code=str(place)))

    assert ended.out == "text\n"
    assert ended.err.count("Read-only file system") == 5, ended.err
    assert [(one.st_mode, one.st_uid) for one in before] == [
        (one.stat().st_mode, one.stat().st_uid) for one in (place, place / "a")
    ]
    assert os.listdir(place) == ["a"]


@pytest.mark.usefixtures("mapped")
async def test_what_is_made_in_a_workspace_belongs_to_the_workspaces_owner(spawner: Spawner, place: Path) -> None:
    secretly(place / "former", "former\n")
    if os.geteuid() == 0:
        give_away(place, place / "former")
    make = "cat former; echo new > new; mkdir deep; echo deep > deep/deep; ln -s new link; stat -c %u:%g new"

    ended = await run(spawner, a_plan("/bin/sh", "-c", make, workspace=str(place)))

    assert (ended.err, ended.out) == ("", "former\n1000:1000\n")
    made = [place / name for name in ("new", "deep", "deep/deep", "link")]
    assert {(path.lstat().st_uid, path.lstat().st_gid) for path in made} == {(place.stat().st_uid, place.stat().st_gid)}


@pytest.mark.usefixtures("mapped")
@root_only
async def test_what_others_have_in_a_workspace_stays_theirs(spawner: Spawner, place: Path) -> None:
    give_away(place)
    secretly(place / "roots", "secret\n")
    (place / "open").write_text("open\n")
    code = "cat open; cat roots; echo x >> open; chmod 777 roots; stat -c %u roots"

    ended = await run(spawner, a_plan("/bin/sh", "-c", code, workspace=str(place)))

    assert ended.out == "open\n65534\n"
    assert "secret" not in ended.err
    assert (place / "open").read_text() == "open\n"
    assert (place / "roots").stat().st_mode & 0o777 == 0o600


@pytest.mark.usefixtures("mapped")
@root_only
async def test_a_workspace_of_roots_gets_no_program_that_becomes_root(spawner: Spawner, place: Path) -> None:
    code = "cp /bin/true ours && chmod 4755 ours; chmod u+s ours; install -m 6755 /bin/true two; mkdir -m 2777 d; ls"

    await run(spawner, a_plan("/bin/sh", "-c", code, workspace=str(place)))

    assert (place / "ours").exists()
    assert not [path for path in place.rglob("*") if path.is_file() and path.stat().st_mode & 0o6000]


@pytest.mark.usefixtures("mapped")
async def test_one_directory_is_code_and_workspace_at_once(spawner: Spawner, place: Path) -> None:
    secretly(place / "a", "text\n")

    ended = await run(spawner, a_plan(*CAT, "/agent/a", "/workspace/a", code=str(place), workspace=str(place)))

    assert (ended.err, ended.out) == ("", "text\ntext\n")


@pytest.mark.parametrize("kind", ["script", "code", "workspace"])
async def test_a_link_on_the_way_to_what_an_agent_may_have_made_is_refused(
    spawner: Spawner, place: Path, kind: str
) -> None:
    (place / "real").mkdir()
    target = place / "real" / "thing"
    target.touch() if kind == "script" else target.mkdir()
    (place / "link").symlink_to("real")
    (place / "last").symlink_to(target)
    before = Belongings.now()

    for path in (place / "link" / "thing", place / "last"):
        with pytest.raises(StepFailed, match=rf"(Open|Detach)Source {path}.*Too many levels") as failure:
            await spawner.spawn(a_plan("/bin/true", **only(kind, path)))
        assert failure.value.errno == errno.ELOOP

    assert Belongings.now() == before


def only(kind: str, path: Path) -> dict[str, Any]:
    return {kind: str(path)}


@contextlib.contextmanager
def swapping(one: Path, other: Path) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", SWAPPER, one, other], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield
    finally:
        process.kill()
        process.stdout.close()
        process.wait()


@pytest.mark.parametrize("kind", ["script", "code", "workspace"])
async def test_a_name_that_is_swapped_for_a_link_meanwhile_never_shows_what_the_link_leads_to(
    spawner: Spawner, place: Path, kind: str
) -> None:
    for directory, text in (("good", "good\n"), ("secret", "secret\n")):
        (place / directory / "in").mkdir(parents=True)
        (place / directory / "in" / "file").write_text(text)
    (place / "link").symlink_to("secret")
    inside = "/workspace/file" if kind == "workspace" else "/agent/file"
    named = place / "good" / "in" / ("file" if kind == "script" else "")
    seen: set[str] = set()

    with swapping(place / "good", place / "link"):
        for attempt in range(rounds(600)):
            if attempt >= rounds(20) and len(seen) > 1:
                break
            try:
                seen.add((await run(spawner, a_plan(*CAT, inside, **only(kind, named)))).out)
            except StepFailed as failure:
                assert failure.errno == errno.ELOOP
                seen.add("refused")

    assert seen == {"good\n", "refused"}, "both have happened, and nothing else"


async def test_a_name_that_was_opened_once_is_not_looked_up_again(spawner: Spawner, place: Path) -> None:
    (place / "code").mkdir()
    (place / "code" / "file").write_text("first\n")

    def replace(_: int) -> None:
        os.rename(place / "code", place / "away")
        (place / "code").mkdir()
        (place / "code" / "file").write_text("second\n")

    sandbox = await spawner.spawn(a_plan(*CAT, "/agent/file", code=str(place / "code")), admit=replace)

    # With root it was opened before the process was born, without by the process itself, later.
    assert (await jail.ended(sandbox)).out == ("first\n" if os.geteuid() == 0 else "second\n")


@pytest.mark.usefixtures("mapped")
@root_only
async def test_a_source_that_fails_after_others_were_opened_leaves_nothing(spawner: Spawner, place: Path) -> None:
    secretly(place / "main.py", "")
    await run(spawner, a_plan("/bin/true"))
    before = Belongings.now()

    for workspace in ("/no/such", str(place / "main.py" / "x")):
        with pytest.raises(StepFailed, match=f"DetachSource {workspace}"):
            await spawner.spawn(a_plan("/bin/true", script=str(place / "main.py"), workspace=workspace))

    assert Belongings.now() == before
    await zygote_has_its_own_alone(spawner)


@pytest.mark.usefixtures("mapped")
@root_only
async def test_nothing_is_left_open_in_the_zygote_when_a_process_is_born_or_is_not(
    spawner: Spawner, place: Path
) -> None:
    secretly(place / "main.py", "print(1)")
    steps = a_plan(sys.executable, "/agent/main.py", script=str(place / "main.py"), workspace=str(place))
    clone, *rest = steps
    assert isinstance(clone, s.Clone)
    await run(spawner, steps)
    before = Belongings.now()

    assert (await run(spawner, steps)).out == "1\n"
    for broken in (clone._replace(flags=clone.flags | 0x200), clone._replace(uid_map="rubbish")):
        with pytest.raises(StepFailed, match="Clone"):
            await spawner.spawn([broken, *rest])

    assert Belongings.now() == before
    await zygote_has_its_own_alone(spawner)
    children = Path(f"/proc/{spawner.zygote.pid}/task/{spawner.zygote.pid}/children").read_text().split()
    assert len(children) == 1, "one process waits in the namespace for the next maps"


@root_only
async def test_where_files_cannot_be_mapped_a_workspace_is_refused_and_code_is_shown_as_it_is(
    spawner: Spawner, place: Path, maps_files: bool
) -> None:
    place.chmod(0o755)
    with contextlib.ExitStack() as stack:
        merged = stack.enter_context(overlay(place)) if maps_files else place
        (merged / "file").write_text("text\n")

        assert (await run(spawner, a_plan(*CAT, "/agent/file", code=str(merged)))).out == "text\n"
        with pytest.raises(StepFailed, match=r"can't be mapped to another user: chown it to \d+:\d+ or move"):
            await spawner.spawn(a_plan("/bin/true", workspace=str(merged)))

        who = HostIds(1610700000, 1610700000)
        os.chown(merged, who.uid, who.gid)
        ended = await run(spawner, as_user(who, "echo x > made", str(merged)))
        assert (ended.err, (merged / "made").stat().st_uid) == ("", who.uid)


@contextlib.contextmanager
def overlay(place: Path) -> Iterator[Path]:
    """A directory of a file system that no kernel can map."""
    lower, upper, work, merged = (place / name for name in ("lower", "upper", "work", "merged"))
    for layer in (lower, upper, work, merged):
        layer.mkdir(mode=0o755)
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    with mounted("overlay", options, merged):
        yield merged


def as_user(who: HostIds, code: str, workspace: str) -> tuple[Step, ...]:
    return plan_sandbox(
        Policy(workspace=Directory(workspace)), Program(["/bin/sh", "-c", code]), probe.read_host(), who
    )
