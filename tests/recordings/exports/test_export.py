"""An export has what the recording has, without what is listed or left out, in any of its bytes."""

import json
import stat
import subprocess
import tarfile
from base64 import b64decode, b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agentos.recordings.changes import INDEX, Change
from agentos.recordings.exports.contents import Contents, Rewriter
from agentos.recordings.exports.redaction import read_list
from agentos.recordings.format import CALLS, FILES, FORMER, AgentFacts, Differences, Life, encode_line
from agentos.recordings.reader import RecordedCall, Recording, read_recording
from agentos.userland.cli.main import cli
from tests.recordings.written import LIFE, line, write_file, write_recording

from .forms import escape, list_parts

HARD, PLAIN, ADDRESS = 'canary "one" 1/2\\3 é😀', "canary-two-0123456789", "canary-three@example.com"
CANARIES = (HARD, PLAIN, ADDRESS)
LIST = f"{HARD}\n{PLAIN}\n/canary-[a-z]+@example[.]com/\n"


def say(text: str, role: str = "user") -> dict[str, str]:
    return {"role": role, "text": text}


def ask(number: int, differences: Differences, *texts: str, **reply: Any) -> dict[str, Any]:
    messages = [say(text, ("user", "assistant")[place % 2]) for place, text in enumerate(texts)]
    question = {"model": "wise", "system": f"never say {PLAIN}", "messages": messages}
    shortened = differences.shorten(2 * number - 1, question)
    usage = {"input": 7, "output": 2}
    return line(number, request=shortened, reply={"success": True, "content": "yes", "usage": usage, **reply})


def in_base64(key: str, data: bytes) -> dict[str, str]:
    return {key: b64encode(data).decode(), "encoding": "base64"}


def write_full(directory: Path) -> Path:
    """A recording with canaries in all that it can have."""
    said, in_json = Differences(), escape(HARD, 2)
    exec_chunks = [{"stream": "stdout", "text": part} for part in ("a canary-two-", "01234", "56789 in three")]
    http_chunks = [
        {"body": b64encode(part).decode(), "encoding": "base64"} for part in (b"\xffcanary-two", b"-0123456789")
    ]
    lines = [
        ask(1, said, f"keep {PLAIN}", logprobs=[{"token": "canary-two-0123"}, {"token": "456789"}]),
        ask(2, said, f"keep {PLAIN}", f"it is {HARD}", f'run {{"text": "{in_json}"}} by {ADDRESS}'),
        ask(3, said, f"keep {PLAIN}", f"it is {HARD}", "something else", content=f"{PLAIN} is yours", stream=True),
        line(4, "EXEC", request={"command": f"echo {PLAIN}"}, reply={"success": True}, chunks=exec_chunks, files=3),
        line(5, "HTTP", request={"url": f"http://example.com/{PLAIN}"}, reply={"success": True}, chunks=http_chunks),
        line(6, "STORE", request={"key": PLAIN, "value": {PLAIN: [{HARD: 7654321}], "pin": 4711_0815}}),
        line(
            7,
            "READ",
            reply={"success": True, "content": b64encode(f"\0{HARD}".encode()).decode(), "encoding": "base64"},
        ),
        line(8, "0xff", request={"base64": b64encode(encode_line({"deep": [HARD, ADDRESS]})).decode()}, outcome=PLAIN),
        line(9, "SEND", life=f"{PLAIN}/1", request={"to_name": PLAIN}, reply=None),
        line(10, "THINK", request={PLAIN: HARD}, reply={"success": False, "code": "bad_request", "error": HARD}),
    ]
    facts = AgentFacts(4, [PLAIN, HARD], f"/home/{PLAIN}/bin/python")
    lives = [
        Life(LIFE, "coder", 1000.0, ended=2000.0, exit=f"exit status 1: {HARD}", start="coder@3", file_bytes=9),
        Life(
            f"{PLAIN}/1", PLAIN, 1000.0, reason=HARD, no_files=HARD, lost=HARD, resumed=PLAIN, forked=PLAIN, start=PLAIN
        ),
    ]
    agents, masks = {"coder": facts, PLAIN: facts}, [PLAIN, "ticket-[0-9]+"]
    path = write_recording(
        directory, lines, name=PLAIN, reason=HARD, lives=lives, agents=agents, masks=masks, automatic=True
    )
    kept = path / FILES / "7"
    kept.mkdir(parents=True, mode=0o700)
    changes = [
        Change(f"in/{PLAIN}", "file", 0o600, 5),
        Change(f"{HARD}{ADDRESS}", "link", target=HARD),
        Change("gone", "deleted"),
    ]
    write_file(kept / INDEX, encode_line(changes))
    write_file(kept / "0", b"\xff\0" + b64encode(HARD.encode()) + PLAIN.encode() + escape(HARD, 1).encode())
    return path


def export(path: Path, *options: str) -> tuple[bytes, str]:
    """The bytes of the file, and what is printed."""
    file = path.parent / "out.tar"
    done = CliRunner().invoke(cli, ["recordings", "export", str(path), str(file), *options])
    assert done.exit_code == 0, done.output
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [one.name for one in path.parent.iterdir() if one.name.startswith(".")] == []
    return file.read_bytes(), done.output


def unpack(path: Path) -> Recording:
    """As people do it."""
    place = path.parent / "unpacked"
    place.mkdir()
    subprocess.run(["tar", "xf", path.parent / "out.tar"], cwd=place, check=True)
    (found,) = place.iterdir()
    return read_recording(found)


def has_none(data: bytes, *canaries: str) -> bool:
    found = [part for canary in canaries or CANARIES for part in list_parts(canary) if part in data]
    return not found and b"canary" not in data


@pytest.fixture
def full(tmp_path: Path) -> Path:
    (tmp_path / "list").write_text(LIST)
    return write_full(tmp_path / "full.recording")


def test_no_byte_of_a_redacted_export_has_what_is_listed(full: Path) -> None:
    data, said = export(full, "--redact", str(full.parent / "list"))

    assert has_none(data)
    list_ = full.parent / "list"
    assert f"{list_}, line 1: 1 text\n{list_}, line 2: 1 text\n{list_}, line 3: 1 text\n" in said
    found = unpack(full)
    assert [life.life for life in found.manifest.lives] == [LIFE, "redacted-2/1"]
    assert (found.manifest.name, found.manifest.masks) == ("redacted-2", ["ticket-[0-9]+"])
    calls = [*found.calls()]
    assert [call.begin for call in calls] == [*range(1, 20, 2)]
    assert calls[1].request["messages"][:2] == [say("keep ⟦redacted 2⟧"), say("it is ⟦redacted 1⟧", "assistant")]
    assert calls[1].request["messages"][2]["text"] == 'run {"text": "⟦redacted 1⟧"} by ⟦redacted 3⟧'
    assert calls[3].chunks == ({"stream": "stdout", "text": "a ⟦redacted 2⟧ in three"},)
    assert b64decode(calls[4].chunks[0]["body"]) == b"\xff" + "⟦redacted 2⟧".encode()
    assert calls[5].request["value"] == {"⟦redacted 2⟧": [{"⟦redacted 1⟧": 7654321}], "pin": 47110815}
    assert b64decode(calls[6].reply["content"]) == "\0⟦redacted 1⟧".encode()  # type: ignore[index]
    assert calls[8].life == "redacted-2/1"


def test_listed_numbers_are_zero(full: Path) -> None:
    (full.parent / "list").write_text("47110815\n7654321")

    data, _ = export(full, "--redact", str(full.parent / "list"))

    assert b"47110815" not in data
    assert [*unpack(full).calls()][5].request["value"][PLAIN] == [{HARD: 0}]


def test_an_export_is_the_recording_without_its_begin(full: Path) -> None:
    _, said = export(full)

    assert "without" not in said
    before, found = read_recording(full), unpack(full)
    assert [*found.calls()] == [*before.calls()]
    assert stat.S_IMODE(found.path.stat().st_mode) == 0o700
    assert (found.path / FILES / "7" / "0").read_bytes() == (full / FILES / "7" / "0").read_bytes()
    first = found.manifest.lives[0]
    assert (first.start, first.no_files) == (None, "what it began with isn't in the file that it was given away in")
    assert not found.manifest.automatic
    assert (found.manifest.name, found.manifest.masks) == (PLAIN, [PLAIN, "ticket-[0-9]+"])


def test_without_texts_only_what_is_measured_is_there(full: Path) -> None:
    data, said = export(full, "--without", "texts")

    names = data.replace(PLAIN.encode(), b"")  # of the recording and of an agent
    assert has_none(names)
    assert b"something" not in data
    assert "without texts, files\n" in said
    found = unpack(full)
    assert not (found.path / FILES).exists()
    calls = [*found.calls()]
    assert [call.call for call in calls] == [call.call for call in read_recording(full).calls()]
    assert [message["text"] for message in calls[2].request["messages"]] == [
        "⟦26 characters⟧",
        f"⟦{len(HARD) + 6} characters⟧",
        "⟦14 characters⟧",
    ]
    assert calls[0].reply == {"success": True, "usage": {"input": 7, "output": 2}, "content": "⟦3 characters⟧"}
    assert calls[9].reply == {"success": False, "code": "bad_request"}
    assert not any(life.replayable for life in found.manifest.lives)


def test_without_files_calls_stay(full: Path) -> None:
    export(full, "--without", "files")

    found = unpack(full)
    assert not (found.path / FILES).exists()
    assert [call.request for call in found.calls()] == [call.request for call in read_recording(full).calls()]
    assert not any(call.files for call in found.calls())
    assert {life.no_files for life in found.manifest.lives} == {"its files were left out when it was given away"}


def test_what_is_listed_is_also_found_in_the_letters_of_base64() -> None:
    keys = ("Zm9yIHRoZSBrZXkK", "no-base64-at-all")
    call = RecordedCall(1, 2, LIFE, "STORE", 1.0, 1.0, {"value": [{"base64": key} for key in keys]}, None)

    [written] = Rewriter(Contents((), read_list("\n".join(keys)).replace)).rewrite_lines([call])

    assert json.loads(written)["request"]["value"] == [{"base64": "⟦redacted 1⟧"}, {"base64": "⟦redacted 2⟧"}]


def test_a_call_that_comes_between_the_two_readings_is_left_out(tmp_path: Path) -> None:
    path, redaction = write_recording(tmp_path / "r.recording", [line(1, "EXEC")]), read_list("/secret-[0-9]+/")
    recording, first = read_recording(path), Rewriter(Contents((), redaction.collect))
    assert len([*first.rewrite_lines(recording.calls())]) == 1
    with (path / CALLS).open("ab") as file:
        file.write(encode_line(line(2, "EXEC", request={"command": "echo secret-1234"})) + b"\n")

    second = Rewriter(Contents((), redaction.replace), first.numbers)

    assert len([*second.rewrite_lines(recording.calls())]) == 1


def test_calls_of_the_former_file_are_in_the_export(tmp_path: Path) -> None:
    path = write_recording(tmp_path / "r.recording", [line(2, "NOOP")])
    write_file(path / FORMER, encode_line(line(1, "NOOP")) + b"\n")

    export(path)

    assert [call.begin for call in unpack(path).calls()] == [1, 3]


def test_what_an_export_lacks_is_shown(full: Path) -> None:
    export(full, "--redact", str(full.parent / "list"), "--without", "files")
    path = unpack(full).path

    shown = CliRunner().invoke(cli, ["recordings", "show", str(path)]).output
    traced = CliRunner().invoke(cli, ["trace", str(path)]).output
    told: Mapping[str, Any] = json.loads(CliRunner().invoke(cli, ["recordings", "show", str(path), "--json"]).output)

    assert "was given away without files, what was redacted\n" in shown
    assert traced == shown
    assert told["lacks"] == ["files", "what was redacted"]


def test_files_of_a_hostile_recording_are_not_followed_outside(full: Path) -> None:
    (full / FILES / "7" / "0").unlink()
    (full / FILES / "7" / "0").symlink_to("/etc/passwd")

    done = CliRunner().invoke(cli, ["recordings", "export", str(full), str(full.parent / "out.tar")])

    assert done.exit_code == 1
    assert "not a regular file" in done.output
    assert sorted(one.name for one in full.parent.iterdir()) == ["full.recording", "list"]


def test_a_list_with_a_mistake_leaves_no_file_and_names_the_line(full: Path) -> None:
    (full.parent / "list").write_text("fine text\n/[0-9]/\n")

    done = CliRunner().invoke(
        cli, ["recordings", "export", str(full), str(full.parent / "out.tar"), "--redact", str(full.parent / "list")]
    )

    assert done.exit_code == 1
    assert f"{full.parent / 'list'}: line 2: /[0-9]/ matches" in done.output
    assert not (full.parent / "out.tar").exists()


def test_the_archive_has_plain_entries_of_no_owner(full: Path) -> None:
    export(full)

    with tarfile.open(full.parent / "out.tar") as archive:
        entries = archive.getmembers()
    assert {(entry.uid, entry.gid, entry.uname) for entry in entries} == {(0, 0, "")}
    assert [entry.name.partition("/")[2] for entry in entries] == [
        "",
        "recording.json",
        "calls.jsonl",
        "files/7/changes.json",
        "files/7/0",
    ]
