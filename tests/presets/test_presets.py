"""Presets of programs: what each sets, how a user adds one, and what is said of one that can't be used."""

import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from agentos.config.load import ConfigError, load
from agentos.presets import SHIPPED, BadPreset, Preset, check_place, list_presets, read_preset, user_directories
from agentos.userland.cli.common import project_directory
from agentos.userland.cli.main import cli

ROOT = Path(__file__).parents[2]

CODING = ("aider", "claude-code", "codex", "gemini-cli", "mini-swe-agent", "opencode", "qwen-code")


def test_every_shipped_preset_can_be_read_and_says_whose_program_it_is() -> None:
    assert {*CODING, "node", "langchain", "crewai", "autogen", "agents"} == list_presets().keys()
    for name in list_presets():
        preset = read_preset(name)
        assert preset.about
        assert len((SHIPPED / f"{name}.toml").read_text().splitlines()) <= 20, "a preset is ten lines or so"
        assert not any("{model}" in value for value in preset.environment("m").values())


def test_a_coding_agent_has_its_home_outside_of_the_workspace_and_a_command_for_a_task() -> None:
    for name in CODING:
        preset = read_preset(name)
        assert preset.environment("m")["HOME"] == "/tmp", name
        assert preset.endpoint, name
        assert sum("{task}" in word for word in preset.task) == 1, name
        assert preset.install, name


def test_each_coding_agent_has_a_page_that_says_how_to_get_it_and_how_to_give_it_a_task() -> None:
    for name in CODING:
        page = (ROOT / f"docs/how-to/run-{name}.md").read_text()
        for part in (read_preset(name).install.split()[-1], f"agentos task --with {name} "):
            assert part in page, name


def test_node_keeps_its_heap_below_the_limit_of_memory() -> None:
    node = read_preset("node")
    assert node.environment()["NODE_OPTIONS"] == "--max-old-space-size=768"
    assert node.environment(memory=512 << 20)["NODE_OPTIONS"] == "--max-old-space-size=384"
    assert "NODE_OPTIONS" not in read_preset("codex").environment()


def test_the_model_is_filled_in_where_it_is_named() -> None:
    preset = read_preset("claude-code")
    assert preset.needs_model
    assert preset.environment("opus")["ANTHROPIC_MODEL"] == "opus"
    command = read_preset("codex").command(["codex", "exec", "go"], "gpt-9")
    assert (command[0], list(command[-2:]), 'model="gpt-9"' in command) == ("codex", ["exec", "go"], True)


def test_files_are_written_into_home_unless_they_are_there(tmp_path: Path) -> None:
    text = "it's {model}\n$HOME"
    preset = Preset(about="x", files={".a/b c/s.json": text, ".there": "new"}, args=["<%s>"])
    (tmp_path / ".there").write_text("old")

    command = preset.command(["printf", "went on"], "m")
    done = subprocess.run(command, env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]}, capture_output=True)

    assert (done.stdout, done.stderr) == (b"<went on>", b"")
    assert (tmp_path / ".a" / "b c" / "s.json").read_text() == "it's m\n$HOME"
    assert (tmp_path / ".there").read_text() == "old"
    assert preset.needs_model
    with pytest.raises(BadPreset, match=r"its path in the jail, got '\./x'"):
        preset.command(["./x"], "m")
    with pytest.raises(BadPreset, match="this is a script"):
        preset.command([], "m")


def test_a_user_adds_one_and_replaces_a_shipped_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    project, own = user_directories(tmp_path / "project")
    for place in (project, own):
        place.mkdir(parents=True)
    (own / "mine.toml").write_text('about = "mine, of the user"\n[env]\nX = "{model}"\n')
    (own / "codex.toml").write_text('about = "another codex"\n')
    (project / "mine.toml").write_text('about = "mine, of the project"\n')
    assert read_preset("mine", [project, own]).about == "mine, of the project"
    assert read_preset("codex", [project, own]).about == "another codex"
    assert read_preset("aider", [project, own]).about == "aider"


def test_what_can_not_be_used_is_named(tmp_path: Path) -> None:
    for text, told in (
        ("about = 7", "Expected `str`"),
        ('about = "x"\nmemroy = "1G"', "unknown field `memroy`"),
        ('about = "x"\nmemory = "much"', "memory: expected a size"),
        ('about = "x"\n[files]\n"../x" = ""', "files: expected a path of a file below HOME, got '../x'"),
        ('about = "x"\n[files]\n"/etc/x" = ""', "below HOME, got '/etc/x'"),
        ('about = "x"\n[files]\n"x/" = ""', "below HOME, got 'x/'"),
        ('about = "x"\nmessages = "stream-json"', "messages: expected none without steered"),
        ("about = ", "Invalid value"),
        ("x" * (1 << 17), "larger than 64 KiB"),
    ):
        (tmp_path / "bad.toml").write_text(text)
        with pytest.raises(BadPreset, match=r"bad\.toml") as error:
            read_preset("bad", [tmp_path])
        assert told in str(error.value)
    with pytest.raises(BadPreset, match=r"expected one of agents, aider, .*, got 'cladue'"):
        read_preset("cladue")


def add(place: Path, text: str = 'about = "mine"\n') -> Path:
    (place / "presets").mkdir(parents=True, exist_ok=True)
    (place / "presets/mine.toml").write_text(text)
    return place / "presets/mine.toml"


@pytest.mark.parametrize("workspace", ["work", ".", '"work", mode = "overlay"'])
def test_a_preset_in_a_workspace_is_never_taken(tmp_path: Path, workspace: str) -> None:
    """An agent that can write it decides with which variables and arguments others start, also without a jail."""
    place = workspace.split('"')[1] if '"' in workspace else workspace
    (tmp_path / "work").mkdir()
    table = f"{{ path = {workspace} }}" if '"' in workspace else f'"{workspace}"'
    text = '[llm]\nprovider = "offline"\nopenai_endpoint = true\n' + "".join(
        f'[[agents]]\nname = "{name}"\ncommand = ["true"]\n{line}\n'
        for name, line in (("a", f"workspace = {table}"), ("b", 'framework = "mine"\nisolation = "none"'))
    )
    (tmp_path / "agentos.toml").write_text(text)
    file = add(tmp_path)
    if place == "work":
        load(tmp_path / "agentos.toml")
        file.rename(tmp_path / "work/mine.toml")
        file.symlink_to(tmp_path / "work/mine.toml")

    with pytest.raises(ConfigError, match=r"framework: the preset mine is in the workspace .* move it to"):
        load(tmp_path / "agentos.toml")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another uid")
@pytest.mark.parametrize("link", ["presets/mine.toml", "presets"])
def test_a_preset_to_which_a_link_in_a_workspace_leads_is_not_taken(tmp_path: Path, link: str) -> None:
    """As a cloned repository may have one: it chooses the file."""
    elsewhere = add(tmp_path / "elsewhere")
    place = tmp_path / "work" / link
    place.parent.mkdir(parents=True)
    place.symlink_to(elsewhere if link.endswith(".toml") else elsewhere.parent)

    with pytest.raises(BadPreset, match="the preset mine is in the workspace"):
        check_place("mine", [tmp_path / "work" / "presets"], [str(tmp_path / "work")])
    check_place("mine", [tmp_path / "elsewhere" / "presets"], [str(tmp_path / "work")])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another uid")
@pytest.mark.parametrize("what", ["mine.toml", "."])
def test_a_preset_of_another_user_is_not_taken(tmp_path: Path, what: str) -> None:
    file = add(tmp_path)
    read_preset("mine", [file.parent])

    os.chown(file.parent / what, 65534, 65534)

    with pytest.raises(BadPreset, match="belongs to uid 65534"):
        read_preset("mine", [file.parent])


def test_a_preset_is_a_file_of_plain_words(tmp_path: Path) -> None:
    for text in (
        'about = "x\\n[[agents]]"',
        'about = "\\u001b[2J"',
        'about = "x"\ninstall = "a\\nb"',
        "a = " + "[" * 9999,
    ):
        file = add(tmp_path, text)
        with pytest.raises(BadPreset, match=r"mine\.toml"):
            read_preset("mine", [file.parent])
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(BadPreset, match="not a regular file"):
        read_preset("mine", [file.parent])


def test_only_a_project_has_presets_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that was downloaded, say, has none that the commands take."""
    add(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert "mine" not in CliRunner().invoke(cli, ["new", "--preset"]).output

    (tmp_path / "agentos.toml").write_text("[kernel]\n")

    assert "mine" in list_presets(user_directories(project_directory()))
