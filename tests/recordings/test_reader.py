"""Recordings that are read: whole, torn, and made by something hostile."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentos.private_files import hold_directory
from agentos.recordings.format import CALLS, MANIFEST, MAX_LINE_BYTES, MAX_LINE_PARTS, MAX_MESSAGES, Life, encode_line
from agentos.recordings.reader import KEPT_QUESTIONS, BadRecording, read_recording

from .written import LIFE, line, write_file, write_recording


def say(text: str, role: str = "user") -> dict[str, str]:
    return {"role": role, "text": text}


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    whole = [
        line(1, "HELLO", request={"protocol": 2}, reply={"success": True, "agent_id": 4}),
        line(2, request={"model": "m", "messages": [say("hello")]}, reply={"success": True, "content": "hi"}),
        line(3, "EXEC", request={"command": "ls"}, reply=None, outcome="cancelled", chunks=[{"stdout": "a"}]),
    ]
    path = write_recording(tmp_path / "r", whole)

    found = read_recording(path)

    assert (found.manifest.name, [life.life for life in found.manifest.lives]) == ("coder-1", [LIFE])
    hello, think, command = found.calls()
    assert (hello.begin, hello.end, hello.call, hello.at, hello.milliseconds) == (1, 2, "HELLO", 1001.0, 2.5)
    assert (think.request, think.reply) == (whole[1]["request"], whole[1]["reply"])
    assert (command.reply, command.outcome, command.chunks) == (None, "cancelled", ({"stdout": "a"},))


def test_a_question_goes_on_with_an_earlier_one(tmp_path: Path) -> None:
    first = {"model": "m", "system": "be brief", "messages": [say("a"), say("b", "assistant"), say("c")]}
    path = write_recording(
        tmp_path / "r",
        [
            line(1, request=first),
            line(2, request={"as": 1, "first": 2, "messages": [say("d")], "system": None}),
            line(3, request={"as": 3, "first": 3, "messages": []}),
        ],
    )

    one, two, three = read_recording(path).calls()

    assert one.request == first
    assert two.request == {"model": "m", "messages": [say("a"), say("b", "assistant"), say("d")]}
    assert three.request == two.request


def test_each_life_has_its_own_questions_and_calls(tmp_path: Path) -> None:
    lines = [line(1, request={"messages": [say("a")]}), line(2, "NOOP", life="other/2")]
    path = write_recording(tmp_path / "r", lines)

    assert [call.call for call in read_recording(path).calls("other/2")] == ["NOOP"]

    write_file(path / CALLS, encode_line(line(1, request={"messages": [say("a")]})) + b"\n")
    with open(path / CALLS, "ab") as file:
        file.write(encode_line(line(2, life="other/2", request={"as": 1, "first": 1})) + b"\n")
    with pytest.raises(BadRecording, match=r"line 2: request\.as: none of the 64 questions before it in its life"):
        list(read_recording(path).calls())


@pytest.mark.parametrize("torn", [b"{", encode_line(line(2))[:-1], encode_line(line(2))])
def test_a_last_line_without_an_end_is_left_out(tmp_path: Path, torn: bytes) -> None:
    path = write_recording(tmp_path / "r", [line(1, "NOOP"), torn])

    assert [call.begin for call in read_recording(path).calls()] == [1]


def test_unknown_keys_and_calls_are_no_mistake(tmp_path: Path) -> None:
    path = write_recording(tmp_path / "r", [line(1, "TELEPORT", place="here")])
    manifest = json.loads((path / MANIFEST).read_bytes())
    write_file(path / MANIFEST, json.dumps({**manifest, "weather": "fine"}).encode())

    assert [call.call for call in read_recording(path).calls()] == ["TELEPORT"]


BAD_LINES: dict[str, tuple[bytes | dict[str, Any], str]] = {
    "no JSON": (b"{]\n", r"line 2: no JSON"),
    "no object": (b"7\n", r"line 2: Expected `object`"),
    "missing key": (b'{"n": [3, 4]}\n', r"line 2: .*missing required field `life`"),
    "depth": (b'{"a":' * 101 + b"1" + b"}" * 101 + b"\n", r"line 2: nested deeper than 100 levels"),
    "life upwards": (line(2, life="../1"), r"line 2: life: expected NAME/NUMBER"),
    "life with dots": (line(2, life="a..b/1"), r"line 2: life: expected NAME/NUMBER"),
    "life with a control character": (line(2, life="a\x1b/1"), r"line 2: life: expected NAME/NUMBER"),
    "order": (line(2, n=[4, 3]), r"line 2: n: expected the numbers of a begin and of a later end"),
    "as itself": (line(2, request={"as": 3, "first": 0}), r"line 2: request\.as: none of the 64"),
    "as a later one": (line(2, request={"as": 9, "first": 0}), r"line 2: request\.as: none of the 64"),
    "as text": (line(2, request={"as": "1", "first": 0}), r"line 2: request\.as: none of the 64"),
    "first": (line(2, request={"as": 1, "first": 2}), r"line 2: request\.first: expected at most 1"),
    "first below": (line(2, request={"as": 1, "first": -1}), r"line 2: request\.first: expected at most 1"),
    "messages": (line(2, request={"messages": 5}), r"line 2: request\.messages: expected a list"),
    "many messages": (line(2, request={"messages": [1] * (MAX_MESSAGES + 1)}), r"request\.messages: expected a list"),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_a_line_that_lies_is_refused_by_its_number(tmp_path: Path, case: str) -> None:
    bad, said = BAD_LINES[case]
    path = write_recording(tmp_path / "r", [line(1, request={"messages": [say("a")]}), bad])

    with pytest.raises(BadRecording, match=said):
        list(read_recording(path).calls())


def test_questions_that_grow_without_end_are_refused(tmp_path: Path) -> None:
    lines = [line(1, request={"messages": [say("a")] * 100})]
    lines += [line(n, request={"as": 2 * n - 3, "first": 100, "messages": [say("a")] * 9_000}) for n in range(2, 9)]
    path = write_recording(tmp_path / "r", lines)
    with open(path / CALLS, "ab") as file:
        file.write(encode_line(line(9, request={"as": 15, "first": 9_100, "messages": [say("a")] * 1_000})) + b"\n")

    with pytest.raises(BadRecording, match=r"line 9: request\.messages"):
        list(read_recording(path).calls())


def test_a_question_too_far_back_is_refused(tmp_path: Path) -> None:
    lines = [line(n, request={"messages": [say(str(n))]}) for n in range(1, KEPT_QUESTIONS + 2)]
    path = write_recording(tmp_path / "r", [*lines, line(KEPT_QUESTIONS + 2, request={"as": 1, "first": 0})])

    with pytest.raises(BadRecording, match=r"request\.as: none of the 64"):
        list(read_recording(path).calls())


def test_a_line_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    path = write_recording(tmp_path / "r", [line(1, "NOOP")])
    os.truncate(path / CALLS, 1 << 30)  # sparse: it takes no room

    with pytest.raises(BadRecording, match=f"line 2: longer than {MAX_LINE_BYTES >> 20} MiB"):
        list(read_recording(path).calls())


def change_manifest(**keys: object) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        manifest = json.loads((path / MANIFEST).read_bytes())
        write_file(path / MANIFEST, json.dumps({**manifest, **keys}).encode())

    return change


def link_calls(path: Path) -> None:
    (path / CALLS).rename(path.parent / "elsewhere")
    (path / CALLS).symlink_to(path.parent / "elsewhere")


def name_calls_twice(path: Path) -> None:
    os.link(path / CALLS, path.parent / "second")


def make_fifo(path: Path) -> None:
    (path / CALLS).unlink()
    os.mkfifo(path / CALLS)


BAD_PLACES: dict[str, tuple[Callable[[Path], object], str]] = {
    "format 2": (change_manifest(format=2), r"format: this version reads format 1, the recording has 2"),
    "no format": (change_manifest(format=None), r"format: this version reads format 1, the recording has None"),
    "name": (change_manifest(name="../etc"), r"name: '../etc' is no name of a recording"),
    "life": (
        change_manifest(lives=[{"life": "/etc/1", "agent": "a", "began": 1.0}]),
        r"lives: life: expected NAME/NUMBER",
    ),
    "wrong type": (change_manifest(lives=5), r"recording\.json: Expected `array`"),
    "calls are a symlink": (link_calls, r"calls\.jsonl: Too many levels of symbolic links"),
    "calls with two names": (name_calls_twice, r"calls\.jsonl: expected a regular file with one name"),
    "calls are a FIFO": (make_fifo, r"calls\.jsonl: expected a regular file"),
    "no manifest": (lambda path: (path / MANIFEST).unlink(), r"recording\.json: No such file"),
    "others may write": (lambda path: path.chmod(0o702), r"other users may write to it"),
    "a group may write": (lambda path: path.chmod(0o720), r"other users may write to it"),
    "others may write calls": (lambda path: (path / CALLS).chmod(0o602), r"calls\.jsonl: other users may write"),
    "a group may write calls": (lambda path: (path / CALLS).chmod(0o620), r"calls\.jsonl: other users may write"),
}


@pytest.mark.parametrize("case", BAD_PLACES)
def test_a_directory_that_lies_is_refused(tmp_path: Path, case: str) -> None:
    path = write_recording(tmp_path / "r", [line(1, "NOOP")])
    spoil, said = BAD_PLACES[case]
    spoil(path)

    with pytest.raises(BadRecording, match=said):
        list(read_recording(path).calls())


def test_a_symlink_to_a_recording_is_refused(tmp_path: Path) -> None:
    path = write_recording(tmp_path / "r", [])
    (tmp_path / "link").symlink_to(path)

    with pytest.raises(BadRecording, match="is a symlink: name the directory itself"):
        read_recording(tmp_path / "link")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    path = write_recording(tmp_path / "r", [])
    os.chown(path, 4242, 4242)

    with pytest.raises(BadRecording, match="belongs to uid 4242; expected uid 0 or root"):
        read_recording(path)


def test_the_first_reason_that_a_life_cannot_be_replayed_stays() -> None:
    life = Life(LIFE, "coder", 1.0)

    life.spoil("it began before the recording")
    life.spoil("the disk is full")

    assert (life.replayable, life.reason) == (False, "it began before the recording")


FIRST_USES = """
import os, sys, threading
from agentos.recordings.reader import Manifest, _Line, msgspec

LINE = {"n": [1, 2], "life": "a/1", "call": "THINK", "at": 1.0, "ms": 1.0, "request": {}}

def convert():
    ready.wait()
    msgspec.convert({"lives": [{"life": "a/1", "agent": "a", "began": 1.0}], "agents": {"a": {"id": 1}}}, Manifest)
    msgspec.convert(LINE, _Line)

for _ in range(150):
    if not (child := os.fork()):
        sys.setswitchinterval(1e-6)
        ready = threading.Barrier(3)
        threads = [threading.Thread(target=convert) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, "the process ended"
"""


def test_threads_may_be_the_first_to_read_at_once() -> None:
    """One of thirty processes ended by SIGSEGV, and with it a kernel that exported a recording."""
    done = subprocess.run([sys.executable, "-c", FIRST_USES], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_errors_name_a_held_directory_as_it_is_called(tmp_path: Path) -> None:
    write_recording(tmp_path / "bad", [line(1, "NOOP", life="/")])
    write_recording(tmp_path / "old", [], format=0)
    with hold_directory(tmp_path) as held:
        for name, where in (("none", "none"), ("old", f"old/{MANIFEST}"), ("bad", f"bad/{CALLS}")):
            with pytest.raises(BadRecording, match=f"^{re.escape(str(tmp_path))}/{where}: "):
                [*read_recording(held / name).calls()]


def test_what_a_question_weighs_is_its_whole_length(tmp_path: Path) -> None:
    long = [say("x" * 1000) for _ in range(100)]
    made = [line(1, request={"model": "m", "messages": long})]
    made += [line(number, request={"as": 2 * number - 3, "first": 100, "messages": []}) for number in range(2, 100)]
    found = [*read_recording(write_recording(tmp_path / "coder-1.recording", made)).calls()]

    assert {call.weight // 100_000 for call in found} == {2, 3}
    assert len(encode_line(made[-1])) < 200


def test_a_line_of_too_many_parts_is_refused_unread(tmp_path: Path) -> None:
    crowded = b'{"n":[1,2],"x":[' + b"[]," * MAX_LINE_PARTS + b"[]]}\n"
    found = read_recording(write_recording(tmp_path / "coder-1.recording", [crowded]))

    with pytest.raises(BadRecording, match="line 1: more than 250,000 arrays and objects"):
        next(found.calls())


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_numbers_that_no_reply_can_have_are_refused(tmp_path: Path, number: str) -> None:
    made = encode_line(line(1, reply={"success": False, "a": 5})).replace(b'"a":5', f'"a":{number}'.encode()) + b"\n"
    found = read_recording(write_recording(tmp_path / "coder-1.recording", [made]))

    with pytest.raises(BadRecording, match=r"line 1: no JSON: .*number"):
        next(found.calls())
