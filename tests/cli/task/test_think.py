"""``agentos think``, against a kernel whose model is offline."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Agentos
from tests.cli.terminal import Terminal
from tests.support.commands import run_agentos, run_agentos_bytes
from tests.support.kernel import Kernel, environment, running
from tests.support.offline import thinking
from tests.support.wire import PATIENCE

PNG = b"\x89PNG\r\n\x1a\n rest"
WAITING = re.compile(rb"(?:\r\x1b\[K[^\r]*)*\r\x1b\[K")  # the line of a question that waits, and its removal
SEVEN = "one two three four five six seven"


@pytest.fixture(scope="module")
def kernel(kernels: None) -> Iterator[Kernel]:
    with thinking() as kernel:
        yield kernel


def given(data: bytes, kernel: Kernel, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
    words = ["think", "--socket", kernel.socket, *arguments]
    return run_agentos_bytes(words, kernel.place, environment(kernel.place), data)


def test_think_shows_the_answer(agentos: Agentos) -> None:
    answered = agentos("think", "seven")

    assert (answered.returncode, answered.stdout, answered.stderr) == (0, SEVEN + "\n", "")


def test_think_gives_programs_the_whole_reply(agentos: Agentos) -> None:
    reply = json.loads(agentos("think", "--json", "seven").stdout)

    assert (reply["content"], reply["finish_reason"]) == (SEVEN, "stop")
    assert reply["tokens"] == sum(reply["usage"].values())


def test_options_go_along_with_the_prompt(agentos: Agentos, kernel: Kernel, tmp_path: Path) -> None:
    images = [tmp_path / "a.png", tmp_path / "b.jpeg"]
    for image in images:
        image.write_bytes(PNG)

    pirate = agentos(*("think", "settings", "--system", "Be a pirate.", "--model", "parrot"), "--thinking", "low")
    seen = agentos("think", "look", *(f"--image={image}" for image in images), "--temperature", "0.5")
    late = agentos("think", "endless", "--timeout", "0.1")

    assert pirate.stdout == "Arr.\n"
    assert seen.stdout.endswith(" look [2 images]\n")
    assert (late.returncode, late.stderr.count("\n")) == (1, 1)
    assert "0.1 s" in late.stderr


def test_an_answer_that_is_cut_off_is_said_to_be(agentos: Agentos) -> None:
    cut = agentos("think", "seven", "--max-tokens", "2")

    assert (cut.returncode, cut.stdout) == (0, "one two \n")
    assert cut.stderr == "(the answer is cut off: it reached its limit of tokens)\n"


@pytest.mark.parametrize("arguments", [(), ("-",)])
def test_the_prompt_can_come_through_a_pipe(kernel: Kernel, arguments: tuple[str, ...]) -> None:
    assert given(b"seven", kernel, *arguments).stdout == SEVEN.encode() + b"\n"
    assert "gr\u00fcn" in given("grün\n".encode(), kernel, *arguments).stdout.decode()
    assert given(b"\xff", kernel, *arguments).stderr == b"agentos: stdin: expected text in UTF-8\n"
    assert given(b"x" * (4 << 20), kernel, *arguments).stdout.startswith(b"[offline echo")
    assert given(b"x" * (1 + (4 << 20)), kernel, *arguments).stderr == b"agentos: stdin: expected at most 4 MiB\n"


def test_a_prompt_that_is_given_leaves_the_pipe_alone(kernel: Kernel, program: str) -> None:
    read, write = os.pipe()  # nobody ever writes to it
    command = [program, "think", "--socket", kernel.socket, "seven"]
    with os.fdopen(read), os.fdopen(write):
        done = subprocess.run(command, stdin=read, capture_output=True, timeout=PATIENCE, check=False)

    assert done.stdout == SEVEN.encode() + b"\n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("think",), "prompt: expected some text, got none"),
        (("think", "x", "--temperature", "3"), "temperature: expected a number from 0 to 2, got 3"),
        (("think", "x", "--max-tokens", "0"), "max_tokens: expected a whole number from 1 up, got 0"),
        (("think", "x", "--image", "/no/such.png"), "--image /no/such.png: No such file or directory"),
        (("think", "x", "--image", "/dev/zero"), "--image /dev/zero: expected less than 11 MiB"),
        (("think", "x", "--socket", "/no/such"), "no kernel at /no/such: start one with `agentos run`"),
    ],
)
def test_an_error_is_one_line_and_status_1(agentos: Agentos, arguments: tuple[str, ...], text: str) -> None:
    failed = agentos(*arguments)

    assert (failed.returncode, failed.stdout) == (1, "")
    assert (failed.stderr.count("\n"), text in failed.stderr, failed.stderr[:9]) == (1, True, "agentos: ")


def test_an_answer_that_breaks_off_is_shown_as_far_as_it_came(agentos: Agentos) -> None:
    broken = agentos("think", "breaks off")

    assert (broken.returncode, broken.stdout) == (1, "half a \n")
    assert broken.stderr.startswith("agentos: ")


def test_the_answer_is_shown_as_it_comes_and_an_interrupt_withdraws_the_question(kernel: Kernel, program: str) -> None:
    command = [program, "think", "--socket", kernel.socket, "endless"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(len("word word ")) == b"word word "

        process.send_signal(signal.SIGINT)
        rest, said = process.communicate(timeout=PATIENCE)

    assert (process.returncode, said) == (130, b"")
    assert rest.endswith(b"\n")
    with kernel.client() as client:
        assert client.think("seven", timeout=PATIENCE)["success"]


def test_a_reader_that_has_seen_enough_withdraws_the_question(kernel: Kernel, program: str) -> None:
    command = f"{program} think --socket {kernel.socket} endless | head -c 4"

    done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=PATIENCE, check=False)

    assert (done.stdout, done.stderr) == (b"word", b"")
    with kernel.client() as client:
        assert client.think("seven", timeout=PATIENCE)["success"]


def test_a_terminal_obeys_nothing_in_an_answer(kernel: Kernel, tmp_path: Path) -> None:
    terminal = Terminal(kernel, "think", XDG_STATE_HOME=str(tmp_path))
    try:
        terminal.wait_for("Ctrl-D:\r\n")
        terminal.type("control\x04\x04")
        assert terminal.end() == 0
    finally:
        terminal.close()

    assert WAITING.sub(b"", terminal.data).replace(b"\r\n", b"\n") == (
        b"The question, and then Ctrl-D:\ncontrol" + rb"red \x1b[31mbell \x07" + b"\nnext line\n"
    )


def on_a_terminal(kernel: Kernel, home: Path, *arguments: str) -> str:
    """What `agentos think` shows on a terminal, and stderr with it."""
    terminal = Terminal(kernel, "think", *arguments, XDG_STATE_HOME=str(home))
    try:
        assert terminal.end() == 0
    finally:
        terminal.close()
    return terminal.data.replace(b"\r\n", b"\n").decode()


def kept(home: Path) -> list[Path]:
    return list((home / "agentos" / "conversations").iterdir())


def test_a_conversation_goes_on_with_c(kernel: Kernel, tmp_path: Path) -> None:
    image = tmp_path / "a.png"
    image.write_bytes(PNG)

    on_a_terminal(kernel, tmp_path, "settings", "--system", "Be a pirate.", "--alias", "parrot")
    answer = on_a_terminal(kernel, tmp_path, "-c", "settings", f"--image={image}")

    assert answer.endswith("Arr.\n")  # by the model and the instructions of the first question
    _, file = sorted(kept(tmp_path), key=os.path.getmtime)  # each of these terminals keeps its own
    conversation = json.loads(file.read_text())
    assert (conversation["system"], conversation["model"]) == ("Be a pirate.", "parrot")
    assert [message["role"] for message in conversation["messages"]] == ["user", "assistant"] * 2
    assert [part["type"] for part in conversation["messages"][2]["content"]] == ["image", "text"]
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_earlier_questions_are_asked_again_with_c(kernel: Kernel, tmp_path: Path) -> None:
    def ask(*arguments: str) -> dict[str, Any]:
        env = {**environment(kernel.place), "XDG_STATE_HOME": str(tmp_path)}
        done = run_agentos(["think", "--socket", kernel.socket, "--json", *arguments], kernel.place, env)
        reply: dict[str, Any] = json.loads(done.stdout)
        return reply

    nothing = ask("-c", "seven")
    on_a_terminal(kernel, tmp_path, "x" * 4000)
    first, second = ask("-c", "seven"), ask("-c", "seven")
    alone = ask("seven")

    assert (nothing["success"], nothing["code"]) == (False, "not_found")
    assert first["usage"]["input"] > 1000 > alone["usage"]["input"]
    assert second["usage"]["input"] > first["usage"]["input"]


def test_a_question_of_a_program_is_not_kept(agentos: Agentos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    assert agentos("think", "seven").returncode == 0

    assert not list(tmp_path.iterdir())


def test_a_terminal_shows_what_a_question_waits_for(kernel: Kernel, tmp_path: Path) -> None:
    busy = Terminal(kernel, "think", "endless", XDG_STATE_HOME=str(tmp_path))
    busy.wait_for("word")
    waiting = Terminal(kernel, "think", "seven", XDG_STATE_HOME=str(tmp_path))
    try:
        waiting.wait_for("waiting: 1st of 1 in line for offline, ")
        busy.process.send_signal(signal.SIGINT)
        assert (busy.end(), waiting.end()) == (130, 0)
    finally:
        for terminal in (busy, waiting):
            terminal.close()

    assert WAITING.sub(b"", waiting.data) == SEVEN.encode() + b"\r\n"


def test_what_is_piped_on_is_what_the_model_said(agentos: Agentos) -> None:
    assert agentos("think", "control").stdout == "red \x1b[31mbell \x07\nnext line\n"


@pytest.mark.usefixtures("kernels")
def test_a_kernel_without_a_model_says_what_to_do() -> None:
    keys = dict.fromkeys(("GEMINI_API_KEY", "GOOGLE_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"), "")
    with running(env=keys) as kernel:
        failed = given(b"", kernel, "why?")

    assert (failed.returncode, failed.stdout) == (1, b"")
    assert b"GEMINI_API_KEY" in failed.stderr
    assert failed.stderr.count(b"\n") == 1
