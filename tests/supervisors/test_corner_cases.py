"""What OTP does where things meet, in the terms of the recorded traces: worked out by hand from supervisor.erl."""

from typing import Any

import pytest
import trio
import trio.testing

from tests.supervisors.otp.otp_replay import Replay, plain, settle

CRASH = "crash"


def node(name: str, **keys: Any) -> dict[str, Any]:
    return {"id": name, **keys}


def supervisor(name: str, children: list[dict[str, Any]], **keys: Any) -> dict[str, Any]:
    return {"id": name, "type": "supervisor", "intensity": 9, "period": 3600, "children": children, **keys}


def dies(name: str, reason: str = CRASH) -> dict[str, Any]:
    return {"exit": name, "reason": reason}


def batch(*items: dict[str, Any], on: str = "root") -> dict[str, Any]:
    return {"batch": on, "do": list(items)}


def played(tree: dict[str, Any], *steps: dict[str, Any]) -> list[tuple[Any, str]]:
    """The result of each step, and its events in one line."""

    async def play() -> list[tuple[Any, str]]:
        seen: list[tuple[Any, str]] = []
        async with trio.open_nursery() as nursery:
            replay = Replay(tree, nursery)
            await replay.start()
            for step in steps:
                await settle()
                replay.world.events.clear()
                result = await replay.step(step)
                await settle()
                seen.append((plain(replay, result), " ".join(replay.world.events)))
            nursery.cancel_scope.cancel()
        return seen

    return trio.run(play, clock=trio.testing.MockClock(autojump_threshold=0))


def test_rest_for_one_retries_from_the_middle_and_revives_a_child_that_a_call_had_stopped() -> None:
    children = [node("a"), node("b", starts={"2": "error"}), node("c"), node("d")]
    tree = supervisor("root", children, strategy="rest_for_one")

    seen = played(tree, {"terminate_child": ["root", "c"]}, dies("b"))

    assert seen[1] == ("ok", "-b#1 crash -d#1 shutdown !b#2 error +b#3 +c#2 +d#2")


def test_a_failed_restart_and_its_retry_each_cost_one_restart() -> None:
    tree = supervisor("root", [node("a", starts={"2": "raise"})], intensity=2)

    seen = played(tree, dies("a"), dies("a"))

    assert seen == [("ok", "-a#1 crash !a#2 raise +a#3"), ("ok", "-a#3 crash -root#1 shutdown")]


@pytest.mark.parametrize(
    ("order", "events"),
    [
        (["a", "s"], "-a#1 crash -s#1 normal -b#1 shutdown +a#2 +s#2 +b#2"),
        (["s", "a"], "-s#1 normal -a#1 crash -b#1 shutdown -root#1 shutdown"),
    ],
)
def test_a_significant_end_absorbed_by_a_group_restart_shuts_nothing_down(order: list[str], events: str) -> None:
    children = [node("a"), node("s", restart="transient", significant=True), node("b")]
    tree = supervisor("root", children, strategy="one_for_all", auto_shutdown="any_significant")

    seen = played(tree, batch(*(dies(name, CRASH if name == "a" else "normal") for name in order)))

    assert seen == [(["ok", "ok"], events)]


def test_a_significant_child_that_waits_for_its_retry_is_not_gone() -> None:
    terms = {"restart": "transient", "significant": True}
    children = [node("s", starts={"2": "error"}, **terms), node("t", **terms)]
    tree = supervisor("root", children, auto_shutdown="all_significant")

    seen = played(tree, batch(dies("s"), dies("t", "normal")), dies("s", "normal"))

    assert [events for _, events in seen] == [
        "-s#1 crash -t#1 normal !s#2 error +s#3",
        "-s#3 normal -root#1 shutdown",
    ]


def test_terminating_a_child_that_waits_leaves_its_group_as_it_is() -> None:
    children = [node("a"), node("b", starts={"2": "error"}), node("c")]
    tree = supervisor("root", children, strategy="one_for_all")

    seen = played(
        tree,
        batch(dies("b"), {"terminate_child": ["root", "b"]}),
        {"which_children": "root"},
        {"restart_child": ["root", "c"]},
        dies("a"),
    )

    assert seen[0] == (["ok", "ok"], "-b#1 crash -c#1 shutdown -a#1 shutdown +a#2 !b#2 error")
    assert seen[1][0] == [["c", None], ["b", None], ["a", "a#2"]]
    assert seen[3][1] == "-a#2 crash -c#2 shutdown +a#3 +b#3 +c#3"


def test_a_child_added_while_another_waits_takes_part_in_the_retry() -> None:
    children = [node("a"), node("b", starts={"2": "error"}), node("c")]
    tree = supervisor("root", children, strategy="rest_for_one")

    seen = played(tree, batch(dies("b"), {"start_child": ["root", node("x")]}, {"count_children": "root"}))

    assert seen == [
        (
            ["ok", ["ok", "x#1"], [4, 2, 0, 4]],
            "-b#1 crash -c#1 shutdown !b#2 error +x#1 -x#1 shutdown +b#3 +c#2 +x#2",
        )
    ]


def test_a_retry_that_is_out_of_date_is_ignored() -> None:
    tree = supervisor("root", [node("a"), node("b", starts={"2": "error"})])
    forget = [{"terminate_child": ["root", "b"]}, {"delete_child": ["root", "b"]}]

    seen = played(tree, batch(dies("b"), *forget, {"start_child": ["root", node("b")]}))

    assert seen == [(["ok", "ok", "ok", ["ok", "b#3"]], "-b#1 crash !b#2 error +b#3")]


@pytest.mark.parametrize(("intensity", "end"), [(4, "+a#3 +b#3"), (3, "+a#3 -a#3 shutdown -root#1 shutdown")])
def test_two_children_wait_at_the_same_time(intensity: int, end: str) -> None:
    children = [node("a", starts={"2": "error"}), node("b", starts={"2": "error"})]
    tree = supervisor("root", children, intensity=intensity)

    seen = played(tree, batch(dies("a"), dies("b")))

    assert seen == [(["ok", "ok"], f"-a#1 crash -b#1 crash !a#2 error !b#2 error {end}")]


def test_a_supervisor_that_does_not_come_back_is_retried_whole() -> None:
    inner = supervisor("m", [node("m1"), node("m2", starts={"2": "error"})])
    tree = supervisor("root", [node("a"), inner])

    seen = played(tree, dies("m"))

    assert seen[0][1] == (
        "-m2#1 shutdown -m1#1 shutdown -m#1 crash "
        "+m#2 +m1#2 !m2#2 error -m1#2 shutdown -m#2 failed_start +m#3 +m1#3 +m2#3"
    )


def test_a_broken_subtree_is_an_ordinary_failed_start() -> None:
    tree = supervisor("root", [node("a")])
    broken = supervisor("m", [node("m1"), node("m1")])

    seen = played(tree, {"start_child": ["root", broken]}, {"start_child": ["root", node("x", restart="no")]})

    assert seen == [(["error", "start_failed"], "!m#1 error"), (["error", "invalid_restart_type"], "")]


def test_a_temporary_supervisor_is_forgotten_by_a_group_restart_with_all_below_it() -> None:
    inner = supervisor("m", [node("m1")], restart="temporary")
    tree = supervisor("root", [node("a"), inner, node("b")], strategy="one_for_all")

    seen = played(tree, dies("a"), {"count_children": "root"})

    assert seen[0][1] == "-a#1 crash -b#1 shutdown -m1#1 shutdown -m#1 shutdown +a#2 +b#2"
    assert seen[1][0] == [2, 2, 0, 2]


def test_a_dynamic_child_that_waits_is_nameless_and_a_handle_is_of_one_life() -> None:
    tree = supervisor("root", [], strategy="simple_one_for_one", template={})
    del tree["children"]

    seen = played(
        tree,
        {"start_child": ["root", node("d", starts={"2": "error", "3": "error"})]},
        {"start_child": ["root", node("e")]},
        batch(dies("d"), {"which_children": "root"}, {"count_children": "root"}),
        batch(dies("d"), {"terminate_child": ["root", "d"], "by": "pid"}),
        {"terminate_child": ["root", "d"], "by": "pid"},
        {"count_children": "root"},
    )

    assert seen[2] == (
        ["ok", [["e", "e#1"], [None, "restarting"]], [1, 1, 0, 2]],
        "-d#1 crash !d#2 error !d#3 error +d#4",
    )
    assert seen[3] == (["ok", "ok"], "-d#4 crash +d#5")  # the call was about d#4
    assert seen[4:] == [("ok", "-d#5 shutdown"), ([1, 1, 0, 1], "")]


def test_the_handle_of_the_life_before_cancels_a_dynamic_childs_retry() -> None:
    tree = supervisor("root", [], strategy="simple_one_for_one", template={})
    del tree["children"]
    terminate = {"terminate_child": ["root", "d"], "by": "pid"}

    seen = played(
        tree,
        {"start_child": ["root", node("d", starts={"2": "error"})]},
        batch(dies("d"), terminate, {"count_children": "root"}),
        terminate,
    )

    assert seen[1:] == [(["ok", "ok", [1, 0, 0, 0]], "-d#1 crash !d#2 error"), ("ok", "")]


def test_a_start_that_is_declined_in_a_group_restart_stops_no_other_child() -> None:
    children = [node("a"), node("b", starts={"2": "ignore"}), node("c")]
    tree = supervisor("root", children, strategy="one_for_all")

    seen = played(tree, dies("a"), {"which_children": "root"}, dies("c"))

    assert seen[0][1] == "-a#1 crash -c#1 shutdown -b#1 shutdown +a#2 !b#2 ignore +c#2"
    assert seen[1][0] == [["c", "c#2"], ["b", None], ["a", "a#2"]]
    assert seen[2][1] == "-c#2 crash -a#2 shutdown +a#3 +b#3 +c#3"


def test_a_dead_child_is_shown_but_not_counted_until_its_end_is_handled() -> None:
    tree = supervisor("root", [node("a"), node("b")])
    ask = [{"count_children": "root"}, {"which_children": "root"}]

    seen = played(tree, batch(*ask, dies("a", "normal")))

    assert seen[0][0] == [[2, 1, 0, 2], [["b", "b#1"], ["a", "a#1"]], "ok"]


def test_calls_behind_the_end_of_their_supervisor_answer_noproc() -> None:
    tree = supervisor("root", [node("a"), supervisor("m", [node("m1")], intensity=0, restart="temporary")])

    seen = played(
        tree,
        batch({"count_children": "m"}, dies("m1"), {"count_children": "m"}, {"start_child": ["m", node("x")]}, on="m"),
    )

    assert seen == [([[1, 0, 0, 1], "ok", ["error", "noproc"], ["error", "noproc"]], "-m1#1 crash -m#1 shutdown")]


def test_a_failed_restart_by_call_is_not_retried() -> None:
    tree = supervisor("root", [node("a", starts={"2": "error"})])

    seen = played(
        tree, {"terminate_child": ["root", "a"]}, {"restart_child": ["root", "a"]}, {"which_children": "root"}
    )

    assert seen[1:] == [(["error", "start_failed"], "!a#2 error"), ([["a", None]], "")]


def test_a_killed_supervisor_is_waited_for_with_all_below_it_before_it_is_restarted() -> None:
    deep = supervisor("n", [node("n1", on_shutdown="slow", slow_ms=50), node("n2")])
    tree = supervisor("root", [supervisor("m", [node("m1"), deep])], intensity=1)

    seen = played(tree, {"kill": "m"})

    events = seen[0][1].split(" +")
    assert sorted(events[0].split(" -")) == [
        "-m1#1 killed",
        "m#1 killed",
        "n#1 killed",
        "n1#1 shutdown",
        "n2#1 shutdown",
    ]
    assert events[1:] == ["m#2", "m1#2", "n#2", "n1#2", "n2#2"]
