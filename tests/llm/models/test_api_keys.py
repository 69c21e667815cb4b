"""Keys are found in the environment and in .env files, and in no other way do they get anywhere."""

import os
from pathlib import Path

import pytest

from agentos.llm.models.api_keys import MAX_BYTES, VARIABLE_NAMES, Variables, read_variables


def write(directory: Path, text: str | bytes, mode: int = 0o600) -> Path:
    path = directory / ".env"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    return path


def values(variables: Variables) -> dict[str, str]:
    return {name: variable.value for name, variable in variables.found.items()}


def test_what_the_environment_says_is_found(tmp_path: Path) -> None:
    found = read_variables({"GEMINI_API_KEY": " a-key\n", "OPENAI_API_KEY": "", "HOME": "/root"}, tmp_path)

    assert values(found) == {"GEMINI_API_KEY": "a-key"}
    assert not found.warnings


def test_a_file_in_the_directory_or_above_it_is_read_the_nearest_only(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    write(tmp_path, "GEMINI_API_KEY=far\nOPENAI_API_KEY=far")
    write(inner.parent, "GEMINI_API_KEY=near")

    assert values(read_variables({}, inner)) == {"GEMINI_API_KEY": "near"}
    assert values(read_variables({}, tmp_path)) == {"GEMINI_API_KEY": "far", "OPENAI_API_KEY": "far"}


def test_the_environment_wins(tmp_path: Path) -> None:
    path = write(tmp_path, "GEMINI_API_KEY=file\nGOOGLE_API_KEY=file")

    found = read_variables({"GEMINI_API_KEY": "environment"}, tmp_path)

    assert values(found) == {"GEMINI_API_KEY": "environment", "GOOGLE_API_KEY": "file"}
    assert found.found["GEMINI_API_KEY"].file is None
    assert found.found["GOOGLE_API_KEY"].file == str(path)


def test_nothing_gets_into_the_process(tmp_path: Path) -> None:
    write(tmp_path, "".join(f"{name}=canary\n" for name in VARIABLE_NAMES))
    before = dict(os.environ)

    found = read_variables({}, tmp_path)

    assert len(found.found) == len(VARIABLE_NAMES)
    assert dict(os.environ) == before
    assert "canary" not in repr(found)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("GEMINI_API_KEY=key", "key"),
        ("  export GEMINI_API_KEY = key  ", "key"),
        ("GEMINI_API_KEY='key'", "key"),
        ('GEMINI_API_KEY="key" # mine', "key"),
        ("GEMINI_API_KEY=key # mine", "key"),
        ("GEMINI_API_KEY=key#1", "key#1"),
        ("GEMINI_API_KEY=a=b", "a=b"),
        ("GEMINI_API_KEY=key\r", "key"),
        ("\ufeffGEMINI_API_KEY=key", "key"),
        ("GEMINI_API_KEY=", None),
        ("GEMINI_API_KEY= # none yet", None),
        ("GEMINI_API_KEY=''", None),
        ("# GEMINI_API_KEY=key", None),
        ("GEMINI_API_KEY_OLD=key", None),
    ],
)
def test_a_line_is_read_as_shells_do(tmp_path: Path, line: str, value: str | None) -> None:
    write(tmp_path, f"{line}\nOTHER=1\n")

    found = read_variables({}, tmp_path)

    assert found.get("GEMINI_API_KEY") == value
    assert not found.warnings


@pytest.mark.parametrize(
    "line", ["GEMINI_API_KEY canary", "GEMINI_API_KEY='canary", 'GEMINI_API_KEY="can"ary', "=canary", "'canary'"]
)
def test_a_line_that_cannot_be_read_is_passed_over_unshown(tmp_path: Path, line: str) -> None:
    path = write(tmp_path, f"OPENAI_API_KEY=key\n\n{line}\nGOOGLE_API_KEY=key")

    found = read_variables({}, tmp_path)

    assert values(found) == {"OPENAI_API_KEY": "key", "GOOGLE_API_KEY": "key"}
    assert list(found.warnings) == [f"{path}: line 3 is not NAME=value, ignored"]


def test_many_such_lines_are_one_warning(tmp_path: Path) -> None:
    write(tmp_path, 'OTHER="-----BEGIN\nmany\nlines\n-----END"\nGEMINI_API_KEY=key')

    found = read_variables({}, tmp_path)

    assert values(found) == {"GEMINI_API_KEY": "key"}
    assert "line 1 and 3 more are not NAME=value" in found.warnings[0]


@pytest.mark.parametrize("value", ["two words", "tab\there", "naïve", "nul\0byte", "\x1b[31m"])
def test_a_value_that_no_header_can_hold_is_passed_over_unshown(tmp_path: Path, value: str) -> None:
    write(tmp_path, f"GEMINI_API_KEY={value}")

    for found in (read_variables({}, tmp_path), read_variables({"GEMINI_API_KEY": value}, tmp_path / "nowhere")):
        assert not found.found
        assert "GEMINI_API_KEY" in found.warnings[0]
        assert value not in found.warnings[0]


def test_bytes_that_are_no_text_harm_only_their_line(tmp_path: Path) -> None:
    write(tmp_path, b"GEMINI_API_KEY=\xff\xfe\nOPENAI_API_KEY=key\n")

    assert values(read_variables({}, tmp_path)) == {"OPENAI_API_KEY": "key"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_not_trusted(tmp_path: Path) -> None:
    path = write(tmp_path, "GEMINI_API_KEY=canary")
    os.chown(path, 12345, 12345)

    found = read_variables({}, tmp_path)

    assert not found.found
    assert list(found.warnings) == [f"{path}: belongs to another user (uid 12345), ignored"]


def test_a_file_that_every_user_may_write_is_not_trusted_and_the_next_is_read(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    path = write(inner, "GEMINI_API_KEY=canary", mode=0o606)
    write(tmp_path, "GEMINI_API_KEY=key")

    found = read_variables({}, inner)

    assert values(found) == {"GEMINI_API_KEY": "key"}
    assert list(found.warnings) == [f"{path}: writable by all users, ignored"]


def test_what_is_no_file_or_too_large_is_passed_over(tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("fifo", "directory", "loop", "large")]
    for place in places:
        place.mkdir()
    os.mkfifo(places[0] / ".env")
    (places[1] / ".env").mkdir()
    (places[2] / ".env").symlink_to(".env")
    write(places[3], b"#" * MAX_BYTES + b"\nGEMINI_API_KEY=key")

    for place in places:
        found = read_variables({}, place)
        assert not found.found
        assert str(place) in found.warnings[0]


def test_a_file_cannot_send_the_key_of_the_environment_elsewhere(tmp_path: Path) -> None:
    write(tmp_path, "OPENAI_BASE_URL=http://127.0.0.1:666/v1")

    found = read_variables({"OPENAI_API_KEY": "key"}, tmp_path)

    assert values(found) == {"OPENAI_API_KEY": "key"}
    assert "OPENAI_BASE_URL" in found.warnings[0]
    assert values(read_variables({}, tmp_path)) == {"OPENAI_BASE_URL": "http://127.0.0.1:666/v1"}


def test_the_example_is_read_without_a_warning(tmp_path: Path) -> None:
    example = Path(__file__).parents[3] / ".env.example"
    text = example.read_text()
    write(tmp_path, text.replace("GEMINI_API_KEY=", "GEMINI_API_KEY=key").replace("\n#O", "\nO").replace("\n#G", "\nG"))

    found = read_variables({}, tmp_path)

    assert not found.warnings
    assert {"GEMINI_API_KEY", "GEMINI_MODEL", "OPENAI_BASE_URL"} <= found.found.keys()
    assert all(name in text for name in VARIABLE_NAMES)
