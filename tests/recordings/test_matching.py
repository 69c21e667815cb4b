"""Which recorded call answers one that a program makes again, and what is said where none does."""

import copy
import random
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.llm.cassettes.recorded_question import read_escapes, write_canonical
from agentos.recordings.matching import Match, Matcher, Miss, list_differences
from agentos.recordings.reader import RecordedCall

Json = dict[str, Any]

TURNS = 5
WORDS = "the parser reads each file once and counts its open brackets".split()  # noqa: SIM905


def call(number: int, request: Json, name: str = "THINK") -> RecordedCall:
    return RecordedCall(2 * number - 1, 2 * number, "coder/1", name, 1000.0, 2.5, request, {"success": True})


def ask(*messages: Json, **keys: object) -> Json:
    return {"model": "vendor/one", "system": "You read files.", "messages": list(messages), **keys}


def user(text: str) -> Json:
    return {"role": "user", "text": text}


def assistant(text: str) -> Json:
    return {"role": "assistant", "text": text}


def tool(text: str) -> Json:
    return {"role": "tool", "text": text, "answers": "c1"}


def matcher(*requests: Json, name: str = "THINK", goes_on: bool = False) -> Matcher:
    made = Matcher(goes_on=goes_on)
    for number, request in enumerate(requests, 1):
        made.add(call(number, request, name))
    return made


def found(made: Matcher, request: Json, name: str = "THINK") -> Match:
    result = made.find(name, request)
    assert isinstance(result, Match), result
    return result


def missed(made: Matcher, request: Json, name: str = "THINK") -> Miss:
    result = made.find(name, request)
    assert isinstance(result, Miss), result
    return result


def conversation(seed: int) -> list[Json]:
    """The questions of a life of several turns, each of which repeats those before."""
    chance = random.Random(seed)

    def words() -> str:
        return " ".join(chance.choice(WORDS) for _ in range(30))

    messages, questions = [user(words())], []
    tools = [{"name": "read", "description": words(), "parameters": {"type": "object"}}]
    for turn in range(TURNS):
        questions.append(ask(*messages, tools=tools, system=f"You {words()}"))
        messages = [*messages, assistant(f"turn {turn}: {words()}"), tool(words())]
    return questions


# -- Rules ---------------------------------------------------------------------------------------------------------


def test_equal_questions_get_their_answers_in_order_and_no_more_than_were_recorded() -> None:
    made = matcher(ask(user("a")), ask(user("b")), ask(user("a")))

    assert [found(made, ask(user(text))).call.begin for text in "aba"] == [1, 3, 5]
    assert missed(made, ask(user("a"))).why == "asked 3 times, recorded 2"


@pytest.mark.parametrize(
    ("name", "sent", "read"),  # as a refused or background call was sent, and as the kernel reads it
    [
        ("USAGE", {"reset": False}, {"reset": False, "by_model": False, "hour": False, "total": False}),
        (
            "STORE",
            {"key": "a", "value": {"b": None}, "ttl": 60},
            {"key": "a", "value": {"b": None}, "scope": "global", "ttl": 60.0},
        ),
        (
            "EXEC",
            {"command": "ls", "async": True, "request_id": 5},
            {"command": "ls", "timeout": 30.0, "env": {}, "stdin": ""},
        ),
        ("READ", {"path": "/workspace/a"}, {"path": "/workspace/a", "offset": 0, "encoding": "utf-8"}),
    ],
)
def test_what_a_request_lacks_is_the_default(name: str, sent: Json, read: Json) -> None:
    assert found(matcher(sent, name=name), read, name).how == "exact"
    assert found(matcher(read, name=name), sent, name).how == "exact"


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("USAGE", {}, {"total": True}),
        ("USAGE", {"base64": "e30="}, {}),
        ("READ", {"path": "/a", "offset": 0}, {"path": "/a", "offset": 1}),
        ("EXEC", {"command": "ls"}, {"command": "ls", "unknown": 1}),
        ("READ", {"path": 3}, {"path": 4}),
    ],
)
def test_a_field_that_differs_from_the_default_is_compared(name: str, one: Json, other: Json) -> None:
    missed(matcher(one, name=name), other, name)


@pytest.mark.parametrize("aside", [{"timeout": 3}, {"stream": True}, {"class": "interactive"}, {"max_tokens": 9}])
def test_what_no_answer_depends_on_is_not_compared(aside: Json) -> None:
    assert found(matcher(ask(user("a"))), {**ask(user("a")), **aside}).how == "exact"


@pytest.mark.parametrize(
    ("recorded", "now", "mask"),
    [
        ("done at 12:03:04", "done at 12:59:01", "clock"),
        ("in /tmp/tmp.kJ3x", "in /tmp/tmp.QQ9a", "temporary"),
        ("took 12.5 ms", "took 9 ms", "duration"),
        ("commit 1a2b3c4d5e", "commit 9f8e7d6c5b", "hex"),
    ],
)
def test_what_masks_cover_is_equal_and_the_masks_are_named(recorded: str, now: str, mask: str) -> None:
    first, later = (ask(user(text)) for text in (recorded, now))
    result = found(matcher(first), later)

    assert (result.how, list(result.masks)) == ("masked", [mask])


def test_a_difference_in_a_tool_output_is_drift_once_and_later_questions_are_equal() -> None:
    said = assistant("I read it.")
    recorded = [
        ask(user("go"), said, tool("3 files")),
        ask(user("go"), said, tool("3 files"), assistant("x"), user("y")),
    ]
    now = [copy.deepcopy(question) for question in recorded]
    for question in now:
        question["messages"][2]["text"] = "4 files"
    made = matcher(*recorded)

    first, second = (found(made, question) for question in now)

    assert (first.how, [(one.kind, one.recorded, one.now) for one in first.drift]) == (
        "drifted",
        [("tool output", "3", "4")],
    )
    assert (second.how, second.drift) == ("masked", ())


def test_words_that_a_mask_covers_are_no_drift_and_the_mask_is_named() -> None:
    first = ask(user("go"), assistant("x"), tool("12:00:31\n5 files in 3 ms\n"))
    now = ask(user("go"), assistant("x"), tool("12:01:06\n6 files in 4 ms\n"))

    result = found(matcher(first), now)

    assert (result.how, list(result.masks)) == ("drifted", ["clock", "duration"])
    assert [(one.kind, one.recorded, one.now) for one in result.drift] == [("tool output", "5", "6")]


def test_what_differs_by_times_that_no_mask_covers_is_drift_of_time() -> None:
    first = ask(user("go"), assistant("x"), tool("5 files, made on Monday in 3 minutes"))
    now = ask(user("go"), assistant("x"), tool("5 files, made on Tuesday in 2 hours"))

    drift = found(matcher(first), now).drift
    assert [(one.kind, one.recorded, one.now) for one in drift] == [
        ("time", "Monday", "Tuesday"),
        ("time", "3 minutes", "2 hours"),
    ]


@pytest.mark.parametrize(
    ("recorded", "now"),
    [
        ("a\n12:00", "a\n13:30"),
        ("\t2026-01-02\r", "\t2026-01-03\r"),
        ("→1700000000", "→1700000001"),
        ("in 5 µs", "in 6 µs"),
        ("\\\n4096 bytes", "\\\n4097 bytes"),
    ],
)
def test_masks_cover_what_stands_at_the_begin_of_a_line_and_beside_other_alphabets(recorded: str, now: str) -> None:
    assert found(matcher({"key": recorded}, name="FETCH"), {"key": now}, "FETCH").how == "masked"


@given(st.text("\\n\nu00e9é\ud8001:", max_size=8), st.text("\\n\nu00e9é\ud8001:", max_size=8))
def test_different_texts_stay_different_where_escapes_are_read(one: str, two: str) -> None:
    read = [read_escapes(write_canonical(text)) for text in (one, two)]

    assert (read[0] == read[1]) == (one == two)


def test_two_questions_at_one_place_are_never_guessed_between() -> None:
    said = assistant("ok")
    made = matcher(ask(user("a"), said, tool("one")), ask(user("a"), said, tool("two")))

    miss = missed(made, ask(user("a"), said, tool("three")))

    assert miss.why == "2 recorded questions stand at this place of the conversation, and none is equal"
    assert [(one.kind, one.recorded, one.now) for one in miss.differences] == [("tool output", "one", "three")]


def test_a_first_question_is_never_matched_by_its_place() -> None:
    miss = missed(matcher(ask(user("count the files"))), ask(user("count the lines")))

    assert (miss.why, [(one.kind, one.recorded, one.now) for one in miss.differences]) == (
        "no recorded call is equal",
        [("prompt", "files", "lines")],
    )


FILES = {"tools": [{"name": "read", "description": "", "parameters": {}}], "system": "Files: none"}
TASK = [user("It is sunny."), user("<session_context>none</session_context>count the files")]
TASK_PART = "message 2 (user)"


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"system": "Files: made.txt"}, "system"),
        ({"messages": [user("It rains."), TASK[1]]}, "message 1 (user)"),
        ({"messages": [TASK[0], user("<session_context>made.txt</session_context>count the files")]}, TASK_PART),
    ],
)
def test_a_life_that_goes_on_may_tell_of_other_files_before_its_task(change: Json, where: str) -> None:
    first, now = ask(*TASK, **FILES), {**ask(*TASK, **FILES), **change}
    made = matcher(first, ask(user("a title")), goes_on=True)

    match = found(made, now)

    assert (match.call.request, match.how, [one.where for one in match.drift]) == (first, "drifted", [where])
    assert "no recorded call is equal" in missed(made, now).why
    assert "no recorded call is equal" in missed(matcher(first), now).why


@pytest.mark.parametrize(
    ("recorded", "change"),
    [
        ([{}], {"messages": [TASK[0], user("<session_context>none</session_context>count the lines")]}),
        ([{}], {"messages": [TASK[0], user("<session_context>none count the files")]}),
        ([{}], {"messages": TASK[1:]}),
        ([{}], {"messages": [assistant("It is sunny."), TASK[1]]}),
        ([{}], {"tools": [{"name": "write", "description": "", "parameters": {}}]}),
        ([{}, {"system": "Files: one"}], {}),
        ([{"tools": None}], {"tools": None}),
    ],
)
def test_a_life_that_goes_on_with_another_task_or_with_one_of_several_finds_no_answer(
    recorded: list[Json], change: Json
) -> None:
    made = matcher(*({**ask(*TASK, **FILES), **one} for one in recorded), goes_on=True)

    missed(made, {**ask(*TASK, **FILES), "system": "Files: made.txt", **change})


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"model": "vendor/two"}, "model"),
        ({"system": "You write files."}, "prompt"),
        ({"tools": [{"name": "read", "description": "Reads", "parameters": {}}]}, "code"),
        ({"temperature": 0.5}, "code"),
    ],
)
def test_the_kind_of_a_change_is_named(change: Json, kind: str) -> None:
    miss = missed(matcher(ask(user("go"), assistant("x"), user("y"))), {**ask(user("go"), user("y")), **change})

    assert kind in [one.kind for one in miss.differences]


def test_a_prompt_that_changes_in_the_middle_of_a_life_is_drift() -> None:
    questions = conversation(7)
    made = matcher(*questions)
    found(made, questions[0])

    result = found(made, {**questions[1], "system": "Be brief."})

    assert (result.how, result.drift[0].kind) == ("drifted", "prompt")


@pytest.mark.parametrize("name", ["FETCH", "HTTP", "EXEC"])
def test_other_calls_are_equal_exactly_or_after_masks_or_not_at_all(name: str) -> None:
    made = matcher({"key": "a"}, {"key": "at 12:00"}, name=name)

    assert found(made, {"key": "at 13:30"}, name).how == "masked"
    assert found(made, {"key": "a"}, name).how == "exact"
    assert missed(made, {"key": "a"}, name).why == "asked 2 times, recorded 1"
    assert missed(made, {"key": "b"}, "SEND").why == "the recording has no SEND"


def test_what_was_not_asked_again_is_known() -> None:
    made = matcher(ask(user("a")), ask(user("b")))
    found(made, ask(user("b")))

    assert [one.begin for one in made.unused()] == [1]


@pytest.mark.parametrize("request_", [{"base64": "AA=="}, {"model": 3, "messages": [1]}, {"model": "m", "tools": [{}]}])
def test_a_question_that_was_refused_may_have_any_form(request_: Json) -> None:
    made = matcher(request_, ask(user("a")))

    assert found(made, request_).how == "exact"
    assert missed(made, {**request_, "x": 1}).nearest is not None


# -- Properties ----------------------------------------------------------------------------------------------------


def change_one_word(questions: list[Json], chance: random.Random) -> tuple[list[Json], int, str]:
    """Change a word that the program decides, from one question on; returns the number of that question too."""
    at, changed = chance.randrange(TURNS), [copy.deepcopy(question) for question in questions]
    kind = chance.choice(["prompt", "code", "tool output" if at else "prompt"])
    for question in changed[at:]:
        places = {
            "tool output": (question["messages"][2 * at], "text"),
            "code": (question["tools"][0], "description"),
            "prompt": (question, "system"),
        }
        holder, key = places[kind]
        words = holder[key].split(" ")
        words[len(words) // 2] = "changed"
        holder[key] = " ".join(words)
    return changed, at, kind


@pytest.mark.parametrize("begin", range(0, 500, 100))
def test_one_changed_word_is_found_at_its_question_and_its_kind_is_named(begin: int) -> None:
    for seed in range(begin, begin + 100):
        questions = conversation(seed)
        changed, at, kind = change_one_word(questions, random.Random(-seed - 1))
        made = matcher(*questions)

        results = [made.find("THINK", question) for question in changed[: at + 1]]

        assert [one.how for one in results[:at] if isinstance(one, Match)] == ["exact"] * at
        last = results[at]
        told = last.drift if isinstance(last, Match) else last.differences
        assert isinstance(last, Miss if at == 0 else Match)
        assert [(one.kind, one.now) for one in told] == [(kind, "changed")]


def test_forty_independent_questions_of_eight_threads_get_their_own_answers() -> None:
    questions = [ask(user(f"document {number}: {' '.join(WORDS)}")) for number in range(40)]
    made, lock, answers = matcher(*questions), threading.Lock(), dict[int, int]()

    def work(mine: list[int]) -> None:
        for number in mine:
            with lock:
                answers[number] = found(made, questions[number]).call.begin

    shares = [list(range(first, 40, 8)) for first in range(8)]
    for share in shares:
        random.Random(share[0]).shuffle(share)
    threads = [threading.Thread(target=work, args=(share,)) for share in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert answers == {number: 2 * number + 1 for number in range(40)}


@given(st.text(max_size=40), st.text(max_size=40))
def test_two_different_parts_always_have_a_difference_to_show(one: str, two: str) -> None:
    told = list_differences("message 1 (user)", user(one), {**user(two), "images": [{"sha256": "0"}]})

    assert told


def test_messages_that_are_no_objects_are_compared_as_well() -> None:
    matcher = Matcher()
    matcher.add(call(1, ask(1, [2])))  # type: ignore[arg-type]
    found = matcher.find("THINK", ask(user("hello")))

    assert isinstance(found, Miss)
    assert found.differences[-1].where == "message 2 ()"
