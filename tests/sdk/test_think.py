"""``think`` and ``think_stream`` of both clients, against a real kernel whose model is offline."""

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

from agentos_sdk import AgentOSClient, ConnectionFailed, client, connect, errors
from agentos_sdk import Kernel as Client
from agentos_sdk.encoding.chunks import Thoughts
from agentos_sdk.opcodes import Op
from agentos_sdk.values import ToolCall
from tests.support.kernel import Kernel
from tests.support.offline import LONG, thinking
from tests.support.wire import PATIENCE

PNG = b"\x89PNG\r\n\x1a\n rest"
TOOLS = [{"name": "multiply", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}]


@pytest.fixture(scope="module")
def slow(kernels: None) -> Iterator[Kernel]:
    """One question at a time, two milliseconds for each token."""
    with thinking() as kernel:
        yield kernel


@pytest.fixture(scope="module")
def quick(kernels: None) -> Iterator[Kernel]:
    """As fast as it goes."""
    with thinking("0ms") as kernel:
        yield kernel


@pytest.fixture
def blocking(slow: Kernel) -> Iterator[AgentOSClient]:
    with slow.client() as client:
        yield client


async def is_free(kernel: Client) -> None:
    """Fails where the line is still busy with the endless answer."""
    with trio.fail_after(PATIENCE):
        assert (await kernel.think("seven")).finish_reason == "stop"


# -- Trio ----------------------------------------------------------------------------------------------------------


async def test_an_answer_is_typed(slow: Kernel) -> None:
    async with connect(slow.socket) as kernel:
        thought = await kernel.think("seven")

    assert thought.content == "one two three four five six seven"
    assert thought.tokens == thought.usage.input + thought.usage.output + thought.usage.thinking > 7
    assert (thought.finish_reason, thought.model, thought.tool_calls) == ("stop", "offline", ())
    assert 0 <= thought.queued_ms < thought.latency_ms


async def test_options_go_along_with_the_question(slow: Kernel, tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(PNG)

    async with connect(slow.socket) as kernel:
        pirate = await kernel.think("settings", system_instruction="Be a pirate.", model="parrot", temperature=0)
        cut = await kernel.think("seven", max_tokens=2)
        stopped = await kernel.think("seven", stop=("five",))
        seen = await kernel.think("look", image=PNG, image_mime_type="image/png", images=[file, str(file)])

    assert (pirate.content, pirate.model) == ("Arr.", "parrot")
    assert (cut.content, cut.finish_reason) == ("one two ", "length")
    assert stopped.content == "one two three four "
    assert seen.content.endswith("look [3 images]")


async def test_a_conversation_with_a_tool(slow: Kernel) -> None:
    async with connect(slow.socket) as kernel:
        asked = {"role": "user", "content": "6 times 7"}
        first = await kernel.think(messages=[asked], tools=TOOLS)
        (call,) = first.tool_calls
        result = {"role": "tool", "content": "42", "tool_call_id": call.id}
        second = await kernel.think(messages=[asked, first.message, result], tools=TOOLS)

    assert call == ToolCall(id=call.id, name="multiply", arguments={"a": 6, "b": "7"})
    assert first.finish_reason == "tool_calls"
    assert second.content == "It is 42."


async def test_a_stream_gives_the_answer_in_pieces_and_then_as_a_whole(slow: Kernel) -> None:
    async with connect(slow.socket) as kernel, kernel.think_stream("seven") as stream:
        before = stream.thought
        pieces = [delta async for delta in stream]
        further = [delta async for delta in stream]

    assert before is None
    assert len(pieces) > 1
    assert stream.thought is not None
    assert "".join(pieces) == stream.thought.content == "one two three four five six seven"
    assert further == []


async def test_a_stream_needs_no_block_of_its_own(slow: Kernel) -> None:
    async with connect(slow.socket) as kernel:
        assert "".join([delta async for delta in kernel.think_stream("seven")]).endswith("seven")
        assert not kernel._pending


async def test_an_image_goes_along_with_a_stream(slow: Kernel) -> None:
    async with connect(slow.socket) as kernel:
        assert "".join([delta async for delta in kernel.think_stream("look", image=PNG)]).endswith("look [1 image]")


async def test_leaving_a_stream_early_withdraws_the_question(slow: Kernel) -> None:
    async with connect(slow.socket) as kernel:
        async with kernel.think_stream("endless") as stream:
            assert (await anext(stream)).startswith("word ")
        await is_free(kernel)

        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_a_stream_can_be_closed(slow: Kernel) -> None:
    async with connect(slow.socket) as kernel:
        stream = kernel.think_stream("endless")
        assert (await anext(stream)).startswith("word ")
        await stream.aclose()
        await stream.aclose()
        await is_free(kernel)


async def test_a_loop_that_is_left_early_withdraws_the_question_when_the_stream_is_forgotten(slow: Kernel) -> None:
    async with connect(slow.socket) as kernel:
        async for delta in kernel.think_stream("endless"):
            assert delta.startswith("word ")
            break
        gc.collect()
        await is_free(kernel)


async def test_a_stream_that_outlives_trio_does_no_harm(slow: Kernel) -> None:
    kept = []

    async def main() -> None:
        async with connect(slow.socket) as kernel:
            stream = kernel.think_stream("endless")
            await anext(stream)
            kept.append(stream)

    await trio.to_thread.run_sync(trio.run, main)
    kept.clear()  # warnings are errors here, and so is what a finalizer raises
    gc.collect()
    async with connect(slow.socket) as kernel:
        await is_free(kernel)


async def test_cancelling_a_scope_withdraws_the_question(slow: Kernel) -> None:
    async with connect(slow.socket) as kernel:
        with trio.move_on_after(0.05) as scope:
            await kernel.think("endless")
        assert scope.cancelled_caught
        await is_free(kernel)


async def test_what_goes_wrong_is_raised_also_in_the_middle_of_an_answer(slow: Kernel) -> None:
    pieces: list[str] = []

    async with connect(slow.socket) as kernel:
        with pytest.raises(errors.BadRequest, match="the offline provider fails"):
            async for delta in kernel.think_stream("breaks off"):
                pieces.append(delta)
        with pytest.raises(errors.BadRequest, match=r"^temperature: expected a number from 0 to 2, got 3$"):
            await kernel.think("x", temperature=3)
        with pytest.raises(errors.BadRequest, match=r"^messages\[1\]\.role: "):
            await kernel.think_stream(messages=[{"role": "user", "content": "x"}, {"role": "bot"}]).__anext__()
        with pytest.raises(errors.Timeout):
            await kernel.think("endless", timeout=0.05)
        await is_free(kernel)

    assert "".join(pieces) == "half a "


async def test_a_file_that_is_not_there_is_what_python_says(slow: Kernel, tmp_path: Path) -> None:
    async with connect(slow.socket) as kernel:
        with pytest.raises(FileNotFoundError):
            await kernel.think("look", image=tmp_path / "none.png")
        with pytest.raises(FileNotFoundError):
            async with kernel.think_stream("look", images=[tmp_path / "none.png"]):
                pass
        assert await kernel.echo("still here") == "still here"


async def test_a_stream_that_is_not_read_holds_up_no_other_call(quick: Kernel) -> None:
    async with connect(quick.socket) as kernel, kernel.think_stream("long") as stream:
        first = await anext(stream)
        with trio.fail_after(PATIENCE):
            thought = await kernel.think("long")  # its turn comes when the other one is answered

        assert not kernel._pending
        assert first + "".join([delta async for delta in stream]) == thought.content == "word " * LONG


async def test_a_full_stream_that_is_left_lets_the_connection_go_on(
    quick: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "MAX_UNREAD_BYTES", 1000)

    async with connect(quick.socket) as kernel:
        async with kernel.think_stream("endless") as stream:
            assert await anext(stream)
            _, pending = stream._started or (0, None)
            assert pending is not None
            with trio.fail_after(PATIENCE):
                while pending._unread_bytes < 1000:
                    await trio.sleep(0.01)
        await is_free(kernel)


@pytest.mark.usefixtures("kernels")
async def test_an_answer_that_will_not_come_is_an_error(tmp_path: Path) -> None:
    with thinking() as doomed:
        async with connect(doomed.socket) as kernel:
            stream = kernel.think_stream("endless")
            await anext(stream)
            await trio.to_thread.run_sync(doomed.kill)
            with pytest.raises(ConnectionFailed, match="gone"):
                async for _ in stream:
                    pass


# -- Blocking ------------------------------------------------------------------------------------------------------


def test_an_answer_is_a_dict_with_what_the_original_had(blocking: AgentOSClient) -> None:
    reply = blocking.think("seven")

    assert reply["success"] is True
    assert reply["error"] is None
    assert reply["content"] == "one two three four five six seven"
    assert reply["tokens"] == sum(reply["usage"].values())


def test_the_arguments_stand_in_the_originals_order(blocking: AgentOSClient) -> None:
    assert blocking.think("look", PNG, "image/png")["content"].endswith("look [1 image]")
    assert blocking.think("settings", None, "image/jpeg", "A pirate.", "low", 0.7, "parrot")["content"] == "Arr."


def test_a_failure_is_a_reply_with_an_empty_content(blocking: AgentOSClient) -> None:
    assert blocking.think("seven", temperature=7) == {
        "success": False,
        "error": "temperature: expected a number from 0 to 2, got 7",
        "code": "bad_request",
        "content": "",
        "tokens": 0,
    }
    assert blocking.think("endless", timeout=0.05)["code"] == "timeout"


def test_tools_are_dicts(blocking: AgentOSClient) -> None:
    asked = {"role": "user", "content": "6 times 7"}
    first = blocking.think(messages=[asked], tools=TOOLS)
    said = {"role": "assistant", "content": first["content"], "tool_calls": first["tool_calls"]}
    result = {"role": "tool", "content": "42", "tool_call_id": first["tool_calls"][0]["id"]}

    assert blocking.think(messages=[asked, said, result])["content"] == "It is 42."


def test_an_answer_may_take_longer_than_the_clients_own_timeout(slow: Kernel) -> None:
    with slow.client(timeout=0.001) as impatient:
        assert impatient.think("seven")["success"]


def test_pieces_can_be_waited_for(blocking: AgentOSClient) -> None:
    with blocking.think_stream("seven") as stream:
        pieces = list(stream)

    assert len(pieces) > 1
    assert stream.thought is not None
    assert "".join(pieces) == stream.thought["content"]
    assert stream.thought["success"]


@pytest.mark.parametrize("leave", ["break", "close", "with"])
def test_an_iterator_that_is_left_early_withdraws_the_question(blocking: AgentOSClient, leave: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    stream = blocking.think_stream("endless")
    LEAVING[leave](stream)
    del stream

    assert len(os.listdir("/proc/self/fd")) == before
    assert blocking.think("seven", timeout=PATIENCE)["success"]


def left_by_break(stream: Thoughts) -> None:
    for delta in stream:
        assert delta.startswith("word ")
        break


def left_by_close(stream: Thoughts) -> None:
    assert next(stream).startswith("word ")
    stream.close()
    assert list(stream) == []


def left_by_with(stream: Thoughts) -> None:
    with pytest.raises(ZeroDivisionError), stream:
        next(stream)
        _ = 1 / 0


LEAVING: dict[str, Callable[[Thoughts], None]] = {"break": left_by_break, "close": left_by_close, "with": left_by_with}


def test_an_iterator_raises_what_went_wrong(blocking: AgentOSClient) -> None:
    pieces: list[str] = []

    with pytest.raises(errors.BadRequest), blocking.think_stream("breaks off") as stream:
        pieces.extend(stream)

    assert "".join(pieces) == "half a "
    assert stream.thought is None
    with pytest.raises(errors.BadRequest, match=r"^temperature: "):
        next(blocking.think_stream("x", temperature=7))


def test_an_agent_in_its_jail_thinks_with_both_clients(blocking: AgentOSClient, slow: Kernel) -> None:
    script = slow.place / "thinker.py"
    script.write_text(
        "from agentos import AgentOSClient\n"
        "with AgentOSClient() as kernel:\n"
        "    open('/workspace/a.png', 'wb').write(b'a picture')\n"
        "    print(kernel.think('look', '/workspace/a.png')['content'])\n"
        "    print(*kernel.think_stream('seven'))\n"
    )

    assert blocking.spawn("thinker", str(script))["success"]

    lines = [line["text"] for page in blocking.follow_logs("thinker") for line in page["lines"]]
    assert lines[0].endswith("look [1 image]")
    assert lines[1].split() == ["one", "two", "three", "four", "five", "six", "seven"]


def test_a_stream_of_version_1_is_refused(blocking: AgentOSClient) -> None:
    refused = blocking.request(Op.THINK, {"prompt": "x", "stream": True})

    assert (refused["code"], refused["error"][:7]) == ("bad_request", "stream:")
