"""Answers that the operator has remembered: for which calls they hold, and until when."""

import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from agentos.kernel.ports import Decision, Question, Right
from agentos.permissions.approvals import answers
from agentos.permissions.exec_request import ExecRequest
from agentos.services.http.destination import parse_url
from agentos.shell.reader import parse_text
from agentos_sdk.errors import (
    ApprovalRefused,
    BadRequest,
    NotFound,
    QuotaExceeded,
)
from tests.support.runs.rows import each_row

from .approval_desk import ANN, BOB, OPERATOR, RULE, Desk, caller, opened, question


async def test_an_answer_holds_for_the_same_object_by_the_same_rule_of_the_same_agent(desk: Desk) -> None:
    await desk.approve(ANN, question(digest="1"), remember="always")
    assert desk.queue.take(ANN, question(digest="1")) is not None  # the ticket

    allowed = desk.queue.take(ANN, question(digest="2"))
    assert allowed == Decision("allow", f"answer 1: {RULE}", "")
    assert desk.queue.take(BOB, question()) is None
    assert desk.queue.take(ANN, question("/data/xy")) is None


def ask_http(url: str, method: str = "POST", digest: str = "1") -> Question:
    right = Right("http", parse_url(url, method)[0])
    return replace(question(digest=digest), call="HTTP", asked=((right, Decision("ask", RULE, "why")),))


@each_row("other", ["https://a.test/items", "https://a.test/items?page=2", "https://a.test:443/items"])
async def test_an_answer_about_http_holds_for_one_method_origin_and_path(desk: Desk, other: str) -> None:
    await desk.approve(ANN, ask_http("https://a.test/items?page=1"), remember="always")

    assert desk.queue.take(ANN, ask_http(other, digest="2")) is not None
    for method, url in (
        ("POST", "https://a.test/items/1"),
        ("POST", "https://a.test/items/"),
        ("POST", "https://a.test/Items"),
        ("POST", "https://a.test/%69tems"),
        ("POST", "http://a.test/items"),
        ("POST", "https://a.test:444/items"),
        ("POST", "https://b.a.test/items"),
        ("PUT", "https://a.test/items"),
    ):
        assert desk.queue.take(ANN, ask_http(url, method, digest="3")) is None, (method, url)


async def test_a_widened_answer_about_http_holds_for_all_paths_of_its_origin_and_method(desk: Desk) -> None:
    desk.ask(ANN, ask_http("https://a.test/items"))
    [entry] = await desk.listed()
    assert entry.covers == [("HTTP, whatever its query, headers and body: ", "POST https://a.test:443/items")]
    assert entry.covers_any_path == (entry.covers[0][0], "POST https://a.test:443 (any path)")
    await desk.decide(entry.id, remember="always", any_path=True)

    assert desk.queue.take(ANN, ask_http("https://a.test/others", digest="2")) is not None
    assert desk.queue.take(ANN, ask_http("https://a.test/items", "PUT", digest="2")) is None
    assert desk.queue.take(ANN, ask_http("https://a.test:444/items", digest="2")) is None
    assert desk.queue.take(BOB, ask_http("https://a.test/others", digest="2")) is None


async def test_a_widened_refusal_is_stronger_than_an_approval_of_a_path(desk: Desk) -> None:
    await desk.approve(ANN, ask_http("https://a.test/items"), remember="always")
    desk.ask(ANN, ask_http("https://a.test/others", digest="4"))
    [entry] = await desk.listed()
    await desk.decide(entry.id, allow=False, remember="always", any_path=True)

    with pytest.raises(ApprovalRefused):
        desk.queue.take(ANN, ask_http("https://a.test/items", digest="2"))


async def test_only_a_remembered_answer_about_http_is_widened(desk: Desk) -> None:
    desk.ask(ANN, question())
    [read] = await desk.listed()
    desk.ask(ANN, ask_http("https://a.test/items"))
    [request] = [one for one in await desk.listed(2) if one.call == "HTTP"]

    for number, remember in ((read.id, "always"), (request.id, "once")):
        with pytest.raises(BadRequest, match="any_path: only for"):
            await desk.decide(number, remember=remember, any_path=True)  # type: ignore[arg-type]


async def test_an_answer_is_void_once_another_rule_asks_and_stays_so(desk: Desk) -> None:
    await desk.approve(ANN, question(digest="1"), remember="always")

    assert desk.queue.take(ANN, question(rule="ask read /data/x (there)", digest="2")) is None
    assert desk.queue.take(ANN, question(digest="3")) is None


async def test_an_answer_holds_for_the_same_rule_by_another_connection_of_the_operator(desk: Desk) -> None:
    def by(number: int) -> str:
        return f"ask read /data/** (SPAWN by operator#{number})"

    await desk.approve(ANN, question(rule=by(7), digest="1"), remember="always")
    assert desk.queue.take(ANN, question(rule=by(7), digest="1")) is not None  # the ticket

    assert desk.queue.take(ANN, question(rule=by(12), digest="2")) is not None
    assert desk.queue.take(ANN, question(rule="ask read /data/** (SPAWN by ann)", digest="3")) is None


async def test_an_answer_for_an_id_holds_for_it_alone_and_ends_with_the_kernel(tmp_path: Path) -> None:
    namesake = caller(9, "ann")
    async with opened(tmp_path) as desk:
        await desk.approve(ANN, question(digest="1"), remember="agent")
        assert desk.queue.take(namesake, question(digest="2")) is None
        assert desk.queue.take(ANN, question(digest="2")) is not None
    async with opened(tmp_path) as desk:
        assert desk.queue.take(ANN, question(digest="2")) is None


async def test_an_answer_for_a_name_outlasts_the_kernel(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        await desk.approve(ANN, question(digest="1"), remember="always")
    async with opened(tmp_path) as desk:
        [answer] = desk.queue.answers.list()
        assert (answer.subject, answer.action, answer.object, answer.by) == (
            *("ann", "read", "/data/x"),
            "uid 1000 on connection 1",
        )
        assert desk.queue.take(caller(7, "ann"), question(digest="2")) is not None


async def test_an_answer_ends_at_its_time(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    await desk.approve(ANN, question(digest="1"), remember="always", seconds=60.0)
    assert desk.queue.take(ANN, question(digest="2")) is not None

    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 61)

    assert desk.queue.take(ANN, question(digest="2")) is None


async def test_an_answer_is_revoked(desk: Desk) -> None:
    await desk.approve(ANN, question(digest="1"), remember="always")

    await desk.queue.forget(OPERATOR, 1)

    assert desk.queue.take(ANN, question(digest="2")) is None
    assert desk.audit.entries[-1].outcome == "forgotten"
    with pytest.raises(NotFound, match="no remembered answer has the id 1"):
        await desk.queue.forget(OPERATOR, 1)


async def test_an_answer_that_a_later_one_has_replaced_is_not_back_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        for digest in ("1", "2"):  # both wait before the first is decided
            desk.ask(ANN, question(digest=digest))
        for entry in await desk.listed(2):
            await desk.decide(entry.id, remember="always")
        await desk.queue.forget(OPERATOR, 2)
        assert desk.queue.answers.list() == []
    async with opened(tmp_path) as desk:
        assert desk.queue.take(ANN, question(digest="3")) is None


async def test_answers_that_are_over_leave_room_for_others(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MAX_ANSWERS", 1)
    await desk.approve(ANN, question("/data/a"), remember="always", seconds=60.0)
    with pytest.raises(QuotaExceeded, match="1 answers are remembered already"):
        await desk.approve(ANN, question("/data/b"), remember="always")
    [entry] = await desk.listed()

    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 61)

    await desk.decide(entry.id, remember="always")
    assert [one.object for one in desk.queue.answers.list()] == ["/data/b"]


async def test_a_remembered_refusal_is_stronger_than_a_remembered_approval(desk: Desk) -> None:
    await desk.approve(ANN, question(digest="1"), remember="always")
    desk.ask(ANN, question(digest="2"), "ann")
    [entry] = await desk.listed()
    await desk.decide(entry.id, allow=False, remember="agent", reason="no more")

    with pytest.raises(ApprovalRefused, match="no more"):
        desk.queue.take(ANN, question(digest="3"))


async def test_a_call_without_an_object_is_remembered_as_a_whole(desk: Desk) -> None:
    def spawn(digest: str) -> Question:
        asked = (Right("spawn"), Decision("ask", RULE, "SPAWN: a person has to agree"))
        return Question("SPAWN", "w: work.py", (asked,), digest, "SPAWN w")

    await desk.approve(ANN, spawn("1"), remember="always")
    assert desk.queue.take(ANN, spawn("1")) is not None  # the ticket

    assert desk.queue.take(ANN, spawn("1")) is not None
    assert desk.queue.take(ANN, spawn("2")) is None


def exec_question(line: str, directory: str) -> Question:
    wanted = ExecRequest(parse_text(line), directory, jailed=True)
    asked = ((Right("exec", wanted), Decision("ask", RULE, "EXEC: a person has to agree")),)
    return Question("EXEC", line, asked, f"{line}|{directory}", f"$ {line}")


async def test_an_answer_about_a_command_holds_for_no_other_command_that_ends_like_its_directory(desk: Desk) -> None:
    evil = "ls in /workspace/a; touch x #"
    await desk.approve(ANN, exec_question("ls", "/workspace/a; touch x # in /workspace"), remember="always")

    assert desk.queue.take(ANN, exec_question(evil, "/workspace")) is None


async def test_an_answer_about_an_object_holds_for_no_call_without_one(desk: Desk) -> None:
    whole = (Right("put"), Decision("ask", RULE, "PUT: a person has to agree"))
    private = Question("PUT", "k (private)", (whole,), "d1", "PUT k")
    named = (Right("put", "exactly k (private) (sha256 d1)"), whole[1])
    await desk.approve(ANN, Question("PUT", "k", (named,), "d2", "PUT k"), remember="always")

    assert desk.queue.take(ANN, private) is None


async def test_each_right_that_rules_ask_about_needs_an_answer(desk: Desk) -> None:
    def both(*paths: str) -> Question:
        asked = tuple((Right("read", path), Decision("ask", RULE, "a person has to agree")) for path in paths)
        return Question("READ", "", asked, "".join(paths), "READ")

    await desk.approve(ANN, question("/a"), remember="always")

    assert desk.queue.take(ANN, both("/a", "/b")) is None
    assert desk.queue.take(ANN, both("/b", "/a")) is None
    assert desk.queue.take(ANN, both("/a", "/a")) is not None


async def test_nothing_is_remembered_for_good_of_a_guest_without_a_name(desk: Desk) -> None:
    guest = caller(5, "guest#5", "guest")

    with pytest.raises(BadRequest, match="this guest has none"):
        await desk.approve(guest, question(), remember="always")

    [entry] = await desk.listed()
    await desk.decide(entry.id, remember="agent")
    assert desk.queue.take(guest, question(digest="2")) is not None


async def test_an_answer_about_a_name_that_is_no_text_outlasts_the_kernel(tmp_path: Path) -> None:
    """A link may lead to any bytes."""
    strange = replace(question("/data/\udcff", digest="strange"), shown="READ /data/\\u{dcff}")
    async with opened(tmp_path) as desk:
        await desk.approve(ANN, strange, remember="always")
    async with opened(tmp_path) as desk:
        assert desk.queue.take(ANN, strange) is not None
        assert desk.queue.take(ANN, question("/data/\\udcff")) is None
