"""Workspaces that last: the files are there again, the size holds, and nothing but the files stays behind."""

# A file in /tmp or /proc keeps nobody waiting here.
# ruff: file-ignore[ASYNC240,ASYNC221]

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from agentos.agents.workspaces.protected_files import MAX_REMOVED, find_lost
from agentos.agents.workspaces.workspace import BadWorkspace, Workspace, Workspaces
from agentos.protected_names import IN_GIT, STUBS, WATCHED
from agentos.sandbox import steps as s
from agentos.sandbox.errors import StepFailed
from agentos.sandbox.files.images import ImageInUse, ImageSize, ImageUnavailable, ensure_image
from agentos.sandbox.host_ids import STORE_IDS
from agentos.sandbox.plan import plan_sandbox
from agentos.sandbox.policy import MIB, Directory, Limits, Policy, Program
from agentos.sandbox.report import probe
from agentos.sandbox.start.spawner import Spawner
from agentos.sandbox.steps import Step
from agentos_sdk.values import HostIds
from tests.sandbox import jail
from tests.sandbox.jail import Belongings, Ended, becomes

ROOT = os.geteuid() == 0
WHO = HostIds(1610699999, 1610699999) if ROOT else None
OURS = f"aos-{os.getpid()}-"
LIMITS = Limits(disk=32 * MIB, inodes=1024)
root_only = pytest.mark.skipif(not ROOT, reason="without root no image can be mounted")


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=OURS, dir="/tmp") as made:
        yield Path(made)


@pytest.fixture
def state(place: Path) -> Path:
    (place / "state").mkdir(mode=0o700)
    return place / "state"


@pytest.fixture
def project(place: Path) -> Path:
    (place / "project").mkdir(mode=0o700)
    if ROOT:
        os.chown(place / "project", 4321, 4321)
    return place / "project"


@pytest.fixture
def mapped(spawner: Spawner, place: Path) -> None:
    """A file system whose files can be shown as somebody else's."""
    if not jail.maps_files(spawner, place):
        pytest.skip("the file system of /tmp has no id-mapped mounts")


@pytest.fixture
def workspaces(state: Path) -> Workspaces:
    return Workspaces(state, ROOT)


@pytest.fixture
def images() -> None:
    """A host that can't have them says so; one where the program is all that lacks may not skip when it must not."""
    if not os.path.exists("/dev/loop-control"):
        pytest.skip("no images on this host: there is no /dev/loop-control")
    if shutil.which("mkfs.ext4", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        if "AGENTOS_MUST_SANDBOX" in os.environ:
            pytest.fail("mkfs.ext4 is not installed (package e2fsprogs)")
        pytest.skip("no images on this host: mkfs.ext4 is not installed")


def steps(workspace: Workspace, code: str) -> tuple[Step, ...]:
    return plan_sandbox(Policy(workspace=workspace.mount), Program(["/bin/sh", "-c", code]), probe.read_host(), WHO)


async def live(spawner: Spawner, workspace: Workspace, code: str) -> Ended:
    return await jail.ended(await spawner.spawn(steps(workspace, code)))


def attached() -> list[str]:
    """The files of ours that are behind loop devices; other tests' kernels have some too."""
    files = []
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):  # another's has just been detached
            files.append(path.read_text().strip())
    return [file for file in files if file.startswith(f"/tmp/{OURS}")]


async def all_detached() -> None:
    await becomes(lambda: len(attached()), 0)


async def test_what_is_kept_is_there_in_the_next_life(spawner: Spawner, workspaces: Workspaces) -> None:
    first = await workspaces.prepare("a", "keep", LIMITS, WHO)
    assert (await live(spawner, first, "echo kept > file; ls")).out == "file\n"
    await workspaces.release(first)

    again = await workspaces.prepare("a", "keep", LIMITS, WHO)
    other = await workspaces.prepare("b", "keep", LIMITS, WHO)

    assert (await live(spawner, again, "cat file; stat -c %u .")).out == "kept\n1000\n"
    assert (await live(spawner, other, "ls")).out == ""
    assert (again.kind, again.mount) == (first.kind, first.mount)
    assert {"a", "b"} <= workspaces.list_kept()


@pytest.mark.skipif(ROOT, reason="with root it's an image")
async def test_without_root_it_is_a_directory_that_is_watched(workspaces: Workspaces, state: Path) -> None:
    found = await workspaces.prepare("a", "keep", LIMITS, None)

    assert (found.kind, found.mechanism) == ("directory", "watched, may overshoot")
    assert found.watched == str(state / "workspaces" / "a")
    assert "without root" in found.reason
    assert os.stat(found.watched).st_mode & 0o777 == 0o700


@root_only
async def test_kept_files_of_another_user_are_no_workspace_of_root_inside(workspaces: Workspaces, state: Path) -> None:
    kept = state / "workspaces" / "a"
    kept.mkdir(parents=True)
    kept.parent.chmod(0o700)
    (kept / "file").touch()
    os.chown(kept, 1610699999, 1610699999)

    with pytest.raises(BadWorkspace, match=r"begun without root inside, by uid 1610699999: move .* away"):
        await workspaces.prepare("a", "keep", LIMITS, HostIds(*[STORE_IDS[0]] * 2))

    (kept / "file").unlink()
    await workspaces.prepare("a", "keep", LIMITS, HostIds(*[STORE_IDS[0]] * 2))
    await workspaces.prepare("a", "keep", LIMITS, WHO)
    assert kept.stat().st_uid == STORE_IDS[0]


@root_only
@pytest.mark.usefixtures("images")
class TestImages:
    async def test_an_image_in_which_nothing_ever_started_is_forgotten_and_no_other(
        self, workspaces: Workspaces, state: Path
    ) -> None:
        image = state / "workspaces" / "a.img"
        await workspaces.forget(await workspaces.prepare("a", "keep", LIMITS, WHO))
        assert not image.exists()
        await workspaces.release(await workspaces.prepare("a", "keep", LIMITS, WHO))

        await workspaces.forget(await workspaces.prepare("a", "keep", LIMITS, WHO))

        assert image.exists()

    async def test_it_holds_as_much_as_it_may_and_no_more(self, spawner: Spawner, workspaces: Workspaces) -> None:
        workspace = await workspaces.prepare("a", "keep", LIMITS, WHO)
        code = "dd if=/dev/zero of=big bs=1M count=40 2>/dev/null; stat -c %s big; rm big; "
        code += "i=0; while touch $i 2>/dev/null; do i=$((i+1)); done; echo $i"

        ended = await live(spawner, workspace, code)

        written, files = map(int, ended.out.split())
        assert 20 * MIB < written < 32 * MIB, ended
        assert 1000 < files < 1024
        assert workspace.mechanism == "ext4 in an image of 32M, 1024 inodes"
        assert workspace.watched is None
        await all_detached()

    async def test_while_it_is_mounted_the_host_sees_nothing_of_it(
        self, spawner: Spawner, workspaces: Workspaces
    ) -> None:
        workspace = await workspaces.prepare("a", "keep", LIMITS, WHO)
        before = Belongings.now()

        sandbox = await spawner.spawn(steps(workspace, "echo here; sleep 600"))
        await jail.line(sandbox)

        assert attached()
        assert Belongings.now().mounts == before.mounts
        assert "a.img" not in Path(f"/proc/{spawner.zygote.pid}/mountinfo").read_text()
        assert "loop" not in "".join(os.readlink(fd) for fd in Path(f"/proc/{spawner.zygote.pid}/fd").iterdir())
        inside = [
            row for row in Path(f"/proc/{sandbox.pid}/mountinfo").read_text().splitlines() if " /workspace " in row
        ]
        assert "nosuid,nodev" in inside[0]
        await jail.kill(sandbox)
        await all_detached()
        assert Belongings.now() == before

    async def test_two_never_have_one_image_at_once(
        self, spawner: Spawner, workspaces: Workspaces, state: Path
    ) -> None:
        workspace = await workspaces.prepare("a", "keep", LIMITS, WHO)
        sandbox = await spawner.spawn(steps(workspace, "echo here; sleep 600"))
        await jail.line(sandbox)

        with pytest.raises(StepFailed, match=r"DetachImage .*a\.img: Resource temporarily unavailable"):
            await spawner.spawn(steps(workspace, "true"))
        assert WHO is not None
        with pytest.raises(ImageInUse):
            ensure_image(state / "workspaces" / "a.img", ImageSize(LIMITS.disk, 1024), WHO)

        await jail.kill(sandbox)
        again = await workspaces.prepare("a", "keep", LIMITS, WHO)
        assert (await live(spawner, again, "echo again")).out == "again\n"
        await all_detached()

    async def test_a_pid_1_that_is_killed_leaves_no_device(self, spawner: Spawner, workspaces: Workspaces) -> None:
        workspace = await workspaces.prepare("a", "keep", LIMITS, WHO)
        before = Belongings.now()
        sandbox = await spawner.spawn(steps(workspace, "echo kept > file; sync; echo here; sleep 600"))
        await jail.line(sandbox)

        os.kill(sandbox.pid, signal.SIGKILL)
        await jail.ended(sandbox)

        await all_detached()
        assert Belongings.now() == before
        again = await workspaces.prepare("a", "keep", LIMITS, WHO)
        assert (await live(spawner, again, "cat file")).out == "kept\n"
        await all_detached()

    async def test_a_step_that_fails_later_leaves_no_device(self, spawner: Spawner, workspaces: Workspaces) -> None:
        workspace = await workspaces.prepare("a", "keep", LIMITS, WHO)
        before = Belongings.now()
        *most, execute = steps(workspace, "true")
        assert isinstance(execute, s.Execute)

        with pytest.raises(StepFailed, match="Execute"):
            await spawner.spawn([*most, execute._replace(argv=("/no/such",))])

        await all_detached()
        assert Belongings.now() == before

    async def test_a_higher_limit_makes_it_larger_and_a_lower_one_is_told_of(
        self, spawner: Spawner, workspaces: Workspaces
    ) -> None:
        await live(spawner, await workspaces.prepare("a", "keep", LIMITS, WHO), "echo kept > file")

        larger = await workspaces.prepare("a", "keep", Limits(disk=200 * MIB, inodes=1024), WHO)
        ended = await live(
            spawner, larger, "cat file; dd if=/dev/zero of=big bs=1M count=100 2>/dev/null; stat -c %s big"
        )
        smaller = await workspaces.prepare("a", "keep", LIMITS, WHO)

        assert ended.err == ""
        assert ended.out == f"kept\n{100 * MIB}\n"
        assert ("image of 200M" in larger.mechanism, larger.reason) == (True, "")
        assert "image of 200M" in smaller.mechanism
        assert smaller.reason == "32M was asked for, but it was made with another size"
        await all_detached()

    async def test_without_the_program_it_is_a_directory_and_says_what_to_install(
        self, spawner: Spawner, workspaces: Workspaces, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        which = shutil.which
        monkeypatch.setattr(shutil, "which", lambda name, path=None: which(name, path=""))

        found = await workspaces.prepare("a", "keep", LIMITS, WHO)

        assert (found.kind, found.mechanism) == ("directory", "watched, may overshoot")
        assert found.reason == "mkfs.ext4 is not installed (package e2fsprogs)"
        assert (await live(spawner, found, "echo x > file; cat file; stat -c %u file")).out == "x\n1000\n"
        assert found.watched is not None
        assert os.stat(f"{found.watched}/file").st_uid == 1610699999

    async def test_one_that_is_damaged_is_an_error_and_not_replaced(self, workspaces: Workspaces, state: Path) -> None:
        await workspaces.prepare("a", "keep", LIMITS, WHO)
        for damage in (b"", b"x" * 4096):
            (state / "workspaces" / "a.img").write_bytes(damage)

            with pytest.raises(BadWorkspace, match=r"can't be used: .*a\.img"):
                await workspaces.prepare("a", "keep", LIMITS, WHO)

        assert os.listdir(state / "workspaces") == ["a.img"]

    def test_what_cannot_become_a_file_system_leaves_nothing(self, state: Path) -> None:
        assert WHO is not None
        with pytest.raises(ImageUnavailable, match=r"mkfs\.ext4 created no file system of 1024 bytes"):
            ensure_image(state / "x.img", ImageSize(1024, 16), WHO)

        assert os.listdir(state) == []


@pytest.fixture
async def work(workspaces: Workspaces, project: Path) -> AsyncIterator[Workspace]:
    workspace = await workspaces.prepare("a", str(project), LIMITS, WHO)
    yield workspace
    await workspaces.release(workspace)


ATTACK = """
for name in {names}; do
  {{ echo evil > $name; }} 2>/dev/null && echo wrote $name
  mkdir $name 2>/dev/null && echo made $name
  {{ echo evil > $name/evil; }} 2>/dev/null && echo wrote in $name
  mv $name away 2>/dev/null && echo moved $name
  ln -sf /tmp $name 2>/dev/null && [ -L $name ] && echo linked $name
  echo evil > new; mv -fT new $name 2>/dev/null && echo replaced $name
  rm -rf $name 2>/dev/null && echo removed $name
done
echo fine > fine; mkdir src; echo x > src/conftest.py
"""


@pytest.mark.usefixtures("mapped")
async def test_names_that_are_absent_cannot_be_made(spawner: Spawner, work: Workspace, project: Path) -> None:
    ended = await live(spawner, work, ATTACK.format(names=" ".join(STUBS)))

    assert ended.out == ""
    assert (project / "fine").read_text() == "fine\n"
    assert not [
        path for path in project.rglob("*") if path.is_file() and "evil" in path.read_text() and path.name != "new"
    ]


@pytest.mark.usefixtures("mapped")
async def test_no_stub_stays_behind(spawner: Spawner, workspaces: Workspaces, project: Path) -> None:
    (project / ".envrc").write_text("mine\n")
    workspace = await workspaces.prepare("a", str(project), LIMITS, WHO)
    beside = await workspaces.prepare("b", str(project), LIMITS, WHO)
    owner = project.stat().st_uid

    await live(spawner, workspace, "touch new")
    await workspaces.release(workspace)
    assert (project / ".vscode").stat().st_uid == owner, "the other one still needs it"
    await workspaces.release(beside)

    assert sorted(os.listdir(project)) == [".envrc", "new"]


async def test_a_stub_that_the_host_has_filled_is_the_hosts(workspaces: Workspaces, project: Path) -> None:
    workspace = await workspaces.prepare("a", str(project), LIMITS, WHO)
    (project / ".vscode" / "tasks.json").write_text("{}")
    (project / ".envrc").write_text("mine\n")
    (project / "refs").unlink()

    await workspaces.release(workspace)

    assert sorted(os.listdir(project)) == [".envrc", ".vscode"]


@pytest.mark.usefixtures("mapped")
async def test_a_protected_name_that_the_host_replaces_is_told_of(
    spawner: Spawner, workspaces: Workspaces, project: Path
) -> None:
    (project / "a b").mkdir()
    workspace = await workspaces.prepare("a", str(project), LIMITS, WHO)
    assert isinstance(workspace.mount, Directory)
    names = ("a b", *workspace.mount.protected)
    sandbox = await spawner.spawn(
        steps(replace(workspace, mount=Directory(str(project), names)), "echo here; sleep 600")
    )
    await jail.line(sandbox)
    assert find_lost(sandbox.program, names) == set()

    (project / "new").write_text("saved\n")
    (project / "new").rename(project / ".envrc")
    (project / ".vscode").rmdir()

    assert find_lost(sandbox.program, names) == {".envrc", ".vscode"}
    await jail.kill(sandbox)
    await workspaces.release(workspace)


async def test_stubs_of_a_kernel_that_was_killed_go_when_it_starts_again(state: Path, project: Path) -> None:
    await Workspaces(state, ROOT).prepare("a", str(project), LIMITS, WHO)  # and never released
    assert os.listdir(project)

    again = Workspaces(state, ROOT)
    for fd in [int(name) for name in os.listdir("/proc/self/fd")]:  # as the end of a process would
        if os.path.realpath(f"/proc/self/fd/{fd}") == str(project):
            os.close(fd)
    await again.sweep()

    assert os.listdir(project) == []


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.usefixtures("mapped")
@pytest.mark.parametrize(("common", "refs"), [(".", False), ("src", False), ("src/deeper", False), (".", True)])
@pytest.mark.parametrize("headless", [False, True], ids=["no repository", "a repository that lost its HEAD"])
async def test_the_workspace_itself_becomes_no_repository(
    spawner: Spawner, workspaces: Workspaces, project: Path, common: str, refs: bool, headless: bool
) -> None:
    if refs:
        (project / "refs").mkdir()
        subprocess.run(["chown", "4321:4321", project / "refs"], check=ROOT)
    if headless:
        git(project, "init", "-q")
        subprocess.run(["chown", "-R", "4321:4321", project], check=ROOT)
    workspace = await workspaces.prepare("a", str(project), LIMITS, WHO)
    code = f"mkdir -p {common}/objects; {{ mkdir {common}/refs; echo {common} > commondir; }} 2>/dev/null; "
    code += "rm -f .git/HEAD; { echo ref: refs/heads/main > HEAD; } 2>/dev/null; "
    code += f'printf "[extensions]\n\tworktreeConfig = true\n" > {common}/config; '
    code += 'printf "[core]\n\tbare = false\n\tworktree = .\n\tfsmonitor = touch owned\n" > config.worktree'

    await live(spawner, workspace, code)

    assert (project / "config.worktree").exists()
    for released in (False, True):
        if released:
            await workspaces.release(workspace)
        with pytest.raises(subprocess.CalledProcessError) as failure:
            git(project, "status")
        assert "not a git repository" in failure.value.stderr
        assert not (project / "owned").exists()
    assert {"refs", "commondir"} & {*os.listdir(project)} == ({"refs"} if refs else set())


def git(project: Path, *arguments: str) -> str:
    who = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
    argv = ["git", "-c", f"safe.directory={project}", "-C", str(project), *arguments]
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **who}
    return subprocess.run(argv, check=True, capture_output=True, text=True, env=env).stdout


@pytest.mark.usefixtures("mapped")
@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize("template", [[], ["--template="]], ids=["with hooks", "bare of them"])
async def test_in_a_repository_work_goes_on_and_what_git_runs_stays(
    spawner: Spawner, workspaces: Workspaces, project: Path, template: list[str]
) -> None:
    git(project, "init", "-q", *template)
    if ROOT:
        subprocess.run(["chown", "-R", "4321:4321", project], check=True)
    before = {path: path.read_bytes() for path in (project / ".git").rglob("*") if path.is_file()}
    workspace = await workspaces.prepare("a", str(project), LIMITS, WHO)
    commit = """
echo text > file; git add file
git -c user.name=a -c user.email=a@b commit -qm first && git log --format=%s HEAD
mv .git elsewhere 2>/dev/null && echo moved .git
mkdir -p fake/hooks; { echo fake > .git/commondir; } 2>/dev/null && echo led away
"""

    ended = await live(spawner, workspace, commit + ATTACK.format(names=" ".join(IN_GIT)))
    await workspaces.release(workspace)

    assert (ended.out, ended.err) == ("first\n", "")
    assert git(project, "log", "--format=%s") == "first\n"
    after = {path: path.read_bytes() for path in (project / ".git").rglob("*") if path.is_file()}
    assert {path: after.get(path) for path in before if path.name != "HEAD"} == {
        path: text for path, text in before.items() if path.name != "HEAD"
    }
    assert not (project / ".git" / "commondir").exists()


@pytest.mark.usefixtures("mapped")
@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
async def test_what_a_repositorys_configuration_leads_to_stays_and_git_runs_nothing_of_the_agents(
    spawner: Spawner, workspaces: Workspaces, project: Path
) -> None:
    git(project, "init", "-q")
    for key, value in {
        "extensions.worktreeConfig": "true",
        "core.hooksPath": ".githooks",
        "filter.own.clean": "tools/clean",
        "include.path": "../.gitsettings",
    }.items():
        git(project, "config", key, value)
    (project / "tools").mkdir()
    (project / "tools" / "clean").write_text("#!/bin/sh\ncat\n")
    if ROOT:
        subprocess.run(["chown", "-R", "4321:4321", project], check=True)
    workspace = await workspaces.prepare("a", str(project), LIMITS, WHO)
    names = ".git/config.worktree .githooks .gitsettings tools/clean"
    setting = "[core]\\n\\tfsmonitor = touch /workspace/ran; false\\n"
    code = f"""
for place in .git/config.worktree .gitsettings; do
  {{ printf '{setting}' >> $place; }} 2>/dev/null && echo set $place
done
mv tools elsewhere 2>/dev/null && echo moved tools
"""

    ended = await live(spawner, workspace, code + ATTACK.format(names=names))
    await workspaces.release(workspace)

    assert (ended.out, ended.err) == ("", "")
    assert (project / "tools" / "clean").read_text() == "#!/bin/sh\ncat\n"
    assert not [name for name in (".git/config.worktree", ".githooks", ".gitsettings") if (project / name).exists()]
    git(project, "status")
    assert not (project / "ran").exists()


@pytest.mark.usefixtures("mapped")
@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
async def test_git_runs_nothing_of_the_agents_in_worktrees_and_repositories_elsewhere_in_the_workspace(
    spawner: Spawner, workspaces: Workspaces, project: Path
) -> None:
    git(project, "init", "-q")
    git(project, "commit", "-q", "--allow-empty", "-m", "first")
    git(project, "config", "core.hooksPath", ".hooks/own")
    (project / ".git").rename(project / ".bare")
    (project / ".git").write_text("gitdir: ./.bare\n")
    git(project, "worktree", "add", "-q", "inner")
    (project / "inner" / ".git").write_text("gitdir: ../.bare/worktrees/inner\n")  # as with worktree.useRelativePaths
    if ROOT:
        subprocess.run(["chown", "-R", "4321:4321", project], check=True)
    workspace = await workspaces.prepare("a", str(project), LIMITS, WHO)
    names = ".bare/config .bare/config.worktree .bare/commondir .bare/hooks .hooks inner/.hooks inner/.git"
    code = "mv inner other 2>/dev/null && echo moved; mv .bare other 2>/dev/null && echo moved;"
    code += (
        "cd inner && echo text > file && git add file && git -c user.name=a -c user.email=a@b commit -qm more; cd ..;"
    )

    ended = await live(spawner, workspace, code + ATTACK.format(names=names))
    await workspaces.release(workspace)

    assert (ended.out, ended.err) == ("", "")
    assert not [name for name in (".hooks", "inner/.hooks", ".bare/commondir") if (project / name).exists()]
    assert git(project, "log", "--format=%s", "inner", "--").split() == ["more", "first"]


@pytest.mark.usefixtures("mapped")
async def test_a_name_that_programs_obey_is_held_where_it_is_and_told_of_where_it_is_new(
    spawner: Spawner, workspaces: Workspaces, project: Path
) -> None:
    (project / ".cargo").mkdir()
    (project / "shared.toml").write_text("mine\n")
    (project / ".cargo" / "config.toml").symlink_to("../shared.toml")
    for name in (".npmrc", ".python-version", "lefthook-local.yml", ".yarn/releases/yarn.cjs", ".hg/hgrc"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("mine\n")
    if ROOT:
        subprocess.run(["chown", "-hR", "4321:4321", project], check=True)
    workspace = await workspaces.prepare("a", str(project), LIMITS, WHO)
    assert not (project / "mise.toml").exists()

    names = ".npmrc .python-version .cargo/config.toml shared.toml lefthook-local.yml .yarn/releases .hg/hgrc"
    plant = "mkdir -p .zed .helix .jj/repo .venv/bin;"
    plant += "echo x | tee mise.toml hk.pkl .venv/bin/python > .jj/repo/config.toml;"
    ended = await live(spawner, workspace, plant + ATTACK.format(names=names))
    assert isinstance(workspace.mount, Directory)
    sandbox = await spawner.spawn(steps(workspace, "echo here; sleep 600"))
    await jail.line(sandbox)
    assert find_lost(sandbox.program, workspace.mount.protected) == set()
    await jail.kill(sandbox)
    told = await workspaces.release(workspace)

    assert {*names.split()} <= {*workspace.mount.protected}
    assert ended.out == ""
    assert [(project / name).read_text() for name in (".npmrc", ".cargo/config.toml")] == ["mine\n"] * 2
    assert told == [
        "its workspace has a new .helix: Helix obeys it, so look at it before that runs there",
        "its workspace has a new .jj/repo/config.toml: Jujutsu obeys it, so look at it before that runs there",
        "its workspace has a new .venv/bin/python: uv obeys it, so look at it before that runs there",
        "its workspace has a new .zed: Zed obeys it, so look at it before that runs there",
        "its workspace has a new hk.pkl: hk obeys it, so look at it before that runs there",
        "its workspace has a new mise.toml: mise obeys it, so look at it before that runs there",
    ]


@pytest.mark.usefixtures("mapped")
async def test_a_name_that_would_change_programs_is_held_where_it_is_and_taken_out_where_it_is_new(
    spawner: Spawner, workspaces: Workspaces, project: Path, state: Path
) -> None:
    (project / "shared").write_text("mine\n")
    (project / ".mcp.json").symlink_to("shared")
    if ROOT:
        subprocess.run(["chown", "-hR", "4321:4321", project], check=True)
    workspace = await workspaces.prepare("a", str(project), LIMITS, WHO)
    new = sorted(WATCHED.keys() - {".mcp.json"})
    assert not WATCHED.keys() & {*os.listdir(project)} - {".mcp.json"}

    plant = "".join(f"echo evil > {name};" for name in new[1:]) + f"mkfifo {new[0]};"
    ended = await live(spawner, workspace, plant + ATTACK.format(names=".mcp.json shared"))
    told = sorted(await workspaces.take_planted(workspace))

    assert ended.out == ""
    assert (project / ".mcp.json").read_text() == "mine\n"
    assert [line.partition(", ")[0] for line in told] == [f"{project}/{name}: an agent has made it" for name in new]
    assert not {*new} & {*os.listdir(project)}
    for number in range(MAX_REMOVED // len(new) + 1):
        for name in new:
            (project / name).write_text(str(number))
        assert len(await workspaces.take_planted(workspace)) == len(new)
    assert len(os.listdir(state / "removed")) == MAX_REMOVED
    assert await workspaces.release(workspace) == []
    (project / "shared").unlink()
    with pytest.raises(BadWorkspace, match=r"\.mcp\.json is a symbolic link to shared, which isn't there"):
        await workspaces.prepare("a", str(project), LIMITS, WHO)


@pytest.mark.usefixtures("mapped")
async def test_a_link_to_what_the_agent_can_write_is_refused_and_one_that_leads_away_is_held(
    spawner: Spawner, workspaces: Workspaces, project: Path
) -> None:
    (project / "envs").mkdir()
    (project / ".envrc").symlink_to("envs/main")
    with pytest.raises(BadWorkspace, match=r"\.envrc is a symbolic link to what the agent can write to"):
        await workspaces.prepare("a", str(project), LIMITS, WHO)
    assert sorted(os.listdir(project)) == [".envrc", "envs"]

    (project / ".envrc").unlink()
    (project / ".envrc").symlink_to("/usr/share/envrc")
    os.chown(project / ".envrc", project.stat().st_uid, project.stat().st_gid, follow_symlinks=False)
    workspace = await workspaces.prepare("a", str(project), LIMITS, WHO)
    ended = await live(spawner, workspace, "rm -f .envrc; ln -sfn /tmp .envrc; mv .envrc x; echo y > y; mv y .envrc")
    await workspaces.release(workspace)

    assert ended.err.count("busy") >= 3, ended.err
    assert os.readlink(project / ".envrc") == "/usr/share/envrc"
