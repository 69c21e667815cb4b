"""From the host's paths to those inside, and back; and what is said about those that have no place there."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.agents.inherit import DEFAULTS
from agentos.agents.jail import layout
from agentos.agents.jail.layout import AgentContents, LayoutError
from agentos.agents.spec import AgentSpec, HostFault
from agentos.agents.workspaces.workspace import Workspace
from agentos.sandbox.policy import Directory, Interpreter
from agentos_sdk.encoding.quantities import CpuShare, Size
from agentos_sdk.values import Limits
from tests.support.runs.rows import each_row

PYTHON = Interpreter("/opt/python/bin/python3", "/opt/python", "/opt/python")
IN_MEMORY = Workspace("tmp", None, "tmpfs")


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A directory with code, and a link out of it."""
    place = tmp_path / "code"
    (place / "deep").mkdir(parents=True)
    (place / "main.py").write_text("")
    (place / "deep" / "other.py").write_text("")
    (tmp_path / "secret.py").write_text("")
    (place / "out.py").symlink_to(tmp_path / "secret.py")
    return place


@each_row(
    ("asked", "found"),
    [
        (None, "/workspace"),
        (".", "/workspace"),
        ("src", "/workspace/src"),
        ("/workspace/src/../lib/", "/workspace/lib"),
        ("/tmp", "/tmp"),
        ("/agent/deep", "/agent/deep"),
        ("../tmp/x", "/tmp/x"),
    ],
)
def test_a_working_directory_is_one_inside(asked: str | None, found: str) -> None:
    assert layout.directory_of(None, asked) == found


@each_row("asked", ["/", "/etc", "..", "/workspace/..", "/workspaces", "/tmpfile", "/agent/../root"])
def test_any_other_working_directory_is_refused_by_name(asked: str) -> None:
    with pytest.raises(LayoutError, match="cwd: expected a directory in /workspace, /agent, /tmp") as caught:
        layout.directory_of(None, asked)

    assert caught.value.field == "cwd"


@given(
    st.text(alphabet="./abtmpwork", max_size=40) | st.lists(st.sampled_from(["..", ".", "a", "tmp", ""])).map("/".join)
)
def test_no_working_directory_is_anywhere_else(asked: str) -> None:
    try:
        found = layout.directory_of(None, asked) or ""
    except LayoutError:
        return

    assert os.path.normpath(found) == found
    assert found.split("/")[1] in ("workspace", "agent", "tmp")


def test_a_script_alone_is_shown_alone(code: Path) -> None:
    what = layout.find_contents(AgentSpec("a", script=str(code / "main.py")))

    assert what == AgentContents(script=str(code / "main.py"))
    assert layout.path_in_jail(str(code / "main.py"), what) == "/agent/main.py"


def test_a_link_is_followed_once_and_goes_by_the_name_of_what_it_leads_to(code: Path, tmp_path: Path) -> None:
    spec = layout.resolved(AgentSpec("a", script=str(code / "out.py")))

    assert spec.script == str(tmp_path / "secret.py")
    assert layout.path_in_jail(spec.script, layout.find_contents(spec)) == "/agent/secret.py"


def test_after_that_no_link_is_followed(code: Path) -> None:
    (code / "main.py").unlink()
    (code / "main.py").symlink_to("../secret.py")

    assert layout.find_contents(AgentSpec("a", script=str(code / "main.py"))) == AgentContents(
        script=str(code / "main.py")
    )


def test_code_is_shown_whole_and_the_script_has_its_place_in_it(code: Path) -> None:
    what = layout.find_contents(AgentSpec("a", script=str(code / "deep" / "other.py"), code=str(code)))

    assert what == AgentContents(code=str(code))
    assert layout.path_in_jail(str(code / "deep" / "other.py"), what) == "/agent/deep/other.py"


def test_a_script_that_is_not_in_code_or_leads_out_of_it_is_refused(code: Path, tmp_path: Path) -> None:
    for script in (tmp_path / "secret.py", code / "out.py", tmp_path / "code-and-more.py"):
        with pytest.raises(LayoutError, match="script: expected a file in code"):
            layout.find_contents(layout.resolved(AgentSpec("a", script=str(script), code=str(code))))


def test_code_is_a_directory(code: Path) -> None:
    with pytest.raises(HostFault, match="code: expected a directory"):
        layout.find_contents(AgentSpec("a", command=("true",), code=str(code / "main.py")))


@each_row("program", ["true", "/bin/sh", "/usr/bin/env", "/workspace/run", "/agent/run"])
def test_a_program_that_a_jail_has_itself_is_not_shown(program: str) -> None:
    assert layout.find_contents(AgentSpec("a", command=(program,))) == AgentContents()


def test_a_program_of_the_hosts_is_shown_like_a_script(code: Path) -> None:
    spec = AgentSpec("a", command=("/opt/tool/run", "x"))

    what = layout.find_contents(spec)

    assert what == AgentContents(script="/opt/tool/run")
    assert layout.program(spec, what, PYTHON.executable, {}).argv == ("/agent/run", "x")


def test_paths_in_an_agents_code_are_the_hosts_again(code: Path) -> None:
    what = AgentContents(code=str(code))

    assert layout.path_on_host("/agent/deep/other.py", what) == str(code / "deep" / "other.py")
    assert layout.path_on_host("/agent", what) == str(code)
    assert layout.path_on_host("/agent/none.py", what) is None


@pytest.mark.parametrize(
    "path",
    ["/agent/out.py", "/agent/../secret.py", "/agent/deep/../../secret.py", "/agents/main.py", "/etc/passwd", "/"],
)
def test_no_path_in_an_agents_code_leads_out_of_it(code: Path, path: str) -> None:
    assert layout.path_on_host(path, AgentContents(code=str(code))) is None


def test_of_a_script_alone_only_its_own_path_is_the_hosts(code: Path) -> None:
    what = AgentContents(script=str(code / "main.py"))

    assert layout.path_on_host("/agent/main.py", what) == str(code / "main.py")
    assert layout.path_on_host("/agent/deep/other.py", what) is None
    assert layout.path_on_host("/agent", what) is None


def test_an_agent_without_code_names_none() -> None:
    assert layout.path_on_host("/agent/main.py", AgentContents()) is None


@given(st.lists(st.sampled_from(["..", ".", "deep", "out.py", "main.py", "other.py", "agent", "workspace", ""])))
def test_outside_never_leads_out(tmp_path_factory: pytest.TempPathFactory, parts: list[str]) -> None:
    place = tmp_path_factory.getbasetemp() / "dwelling-code"
    (place / "deep").mkdir(parents=True, exist_ok=True)
    (place / "main.py").touch()
    if not (place / "out.py").is_symlink():
        (place / "out.py").symlink_to("/etc/passwd")

    found = layout.path_on_host("/agent/" + "/".join(parts), AgentContents(code=str(place)))

    assert found is None or found == str(place) or found.startswith(f"{place}/")


@each_row(
    ("spec", "field"),
    [
        (AgentSpec("a", command=("true",), workspace="/no/such"), "workspace"),
        (AgentSpec("a", command=("true",), workspace="/etc/passwd"), "workspace"),
        (AgentSpec("a", command=("true",), runtime="fast"), "runtime"),
        (AgentSpec("a", script="/x.py", runtime="fast", python="/usr/bin/python3"), "runtime"),
        (AgentSpec("a", script="/x.py", code="/no/such"), "code"),
    ],
)
def test_what_a_jail_cannot_have_is_refused_by_name(spec: AgentSpec, field: str) -> None:
    assert field in [found.field for found in (*layout.mistakes(spec), *layout.find_host_faults(spec))]


def test_the_limits_of_a_jail_are_those_that_were_named_and_the_defaults() -> None:
    found = layout.limits(AgentSpec("a", limits=Limits(memory=Size(1 << 20), cpu_quota=CpuShare(0.25))))

    assert (found.memory, found.cpu_quota) == (1 << 20, 25_000)
    assert (found.max_pids, found.disk, found.tmp) == (DEFAULTS.max_pids, DEFAULTS.disk, DEFAULTS.tmp)


def test_without_a_jail_only_the_rlimits_that_were_named_are_set() -> None:
    named = layout.limits(AgentSpec("a", isolation="none", limits=Limits(open_files=77, file_size=Size(1 << 20))))
    nothing = layout.limits(AgentSpec("a", isolation="none"))

    assert (named.open_files, named.file_size) == (77, 1 << 20)
    assert nothing == type(nothing)()


def test_a_policy_has_what_the_spec_says_and_nothing_else_of_the_hosts(code: Path) -> None:
    spec = AgentSpec("n" * 64, script=str(code / "main.py"), network="host", isolation="strict")

    made = layout.policy(spec, layout.find_contents(spec), PYTHON, IN_MEMORY, "/run/1.sock", "/opt/sdk")

    assert (made.script, made.code, made.workspace) == (str(code / "main.py"), None, None)
    assert (made.socket, made.sdk, made.interpreter) == ("/run/1.sock", "/opt/sdk", PYTHON)
    assert (made.network, made.profile, made.hostname) == ("host", "strict", "n" * 64)


def test_a_workspace_is_mounted_as_it_was_prepared(code: Path) -> None:
    spec = AgentSpec("a", script=str(code / "main.py"), workspace="/home/me/project")
    mount = Directory("/home/me/project", (".git",))

    made = layout.policy(spec, layout.find_contents(spec), PYTHON, Workspace("host", mount, "watched"), "/s", "/sdk")

    assert made.workspace == mount
    assert made.profile == "standard"


def test_a_script_is_run_by_its_interpreter_with_the_sdk_or_by_the_zygote(code: Path) -> None:
    script = str(code / "main.py")
    run, fast = AgentSpec("a", script=script, args=("x",)), AgentSpec("a", script=script, args=("x",), runtime="fast")
    what = layout.find_contents(run)

    assert layout.program(run, what, "/py", {}).argv == ("/py", "/sdk/agentos_sdk/start.py", "/agent/main.py", "x")
    assert layout.program(run, what, "/py", {}).directory == "/workspace"
    assert layout.program(fast, what, "/py", {}).argv == ("/agent/main.py", "x")
    assert layout.program(fast, what, "/py", {}).fast


def test_without_a_jail_the_paths_stay_the_hosts() -> None:
    script = AgentSpec("a", script="/home/me/x.py", args=("y",), isolation="none", cwd="/home/me")
    command = AgentSpec("a", command=("/bin/echo", "a"), args=("b",), isolation="none")

    made = layout.bare_program(script, "/py", "/lib/sdk", {"A": "b"})

    assert made.argv == ("/py", "/lib/sdk/agentos_sdk/start.py", "/home/me/x.py", "y")
    assert (made.directory, made.environment) == ("/home/me", {"A": "b"})
    assert layout.bare_program(command, "/py", "/lib/sdk", {}).argv == ("/bin/echo", "a", "b")


@each_row(
    ("also", "why"),
    [
        ({}, "only an image has a root inside"),
        ({"image": "a", "isolation": "strict"}, "say isolation standard, or leave it out"),
        ({"image": "a", "workspace": "/"}, 'mode = "overlay" }, "keep" or "tmp", or leave it out'),
    ],
)
def test_root_inside_is_refused_with_the_fix(also: dict[str, str], why: str) -> None:
    spec = AgentSpec("a", command=("/bin/true",), user="root", **also)  # type: ignore[arg-type]

    assert [why in mistake.message for mistake in layout.mistakes(spec) if mistake.field == "user"] == [True]


def test_root_inside_of_an_image_in_memory_is_no_mistake() -> None:
    spec = AgentSpec("a", command=("/bin/true",), user="root", image="a")

    assert not list(layout.mistakes(spec))


SCRIPTED = AgentSpec("boss", script="/srv/boss.py")


@each_row(
    ("spec", "parent", "told"),
    [
        (None, None, "/srv/code/x and /srv/boss.py"),
        (None, AgentSpec("boss", code="/srv/code", isolation="none"), "/srv/code/x and /srv/boss.py"),
        (None, AgentSpec("boss", code="/srv/code"), "/agent/x and /srv/boss.py"),
        (None, SCRIPTED, "/srv/code/x and /agent/boss.py"),
        (AgentSpec("w", script="/srv/code/x", copied=True), SCRIPTED, "x and /agent/boss.py"),
    ],
)
def test_an_error_names_no_path_of_the_host_to_a_parent_in_a_jail(
    spec: AgentSpec | None, parent: AgentSpec | None, told: str
) -> None:
    assert layout.replace_host_paths("/srv/code/x and /srv/boss.py", spec, parent) == told
