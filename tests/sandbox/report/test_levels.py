from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.sandbox.report import levels
from agentos.sandbox.report.levels import (
    LIMIT_LAYERS,
    WALL_LAYERS,
    Finding,
    best_level,
    findings_of_record,
    missing_layers,
)
from agentos.sandbox.report.walls import LAYERS
from agentos_sdk.values import Layer
from tests.support.runs.rows import each_row

YES, NO, UNASKED = Finding(True), Finding(False, "why", "knob"), Finding(False, "nobody needs it", asked=False)


def all_but(*names: str, instead: Finding = NO) -> Mapping[str, Finding]:
    return {name: instead if name in names else YES for name in LAYERS}


def names(level: str, layers: Mapping[str, Finding], *named: str, waived: tuple[str, ...] = ()) -> list[str]:
    return [lack.layer for lack in missing_layers(level, layers, named, waived)]


def test_standard_wants_every_wall_and_neither_landlock_nor_a_cgroup() -> None:
    assert names("standard", all_but("landlock", "memory", "pids", "cpu", "disk")) == []
    for wall in WALL_LAYERS:
        assert names("standard", all_but(wall)) == [wall]


def test_strict_wants_every_layer_and_none_wants_nothing() -> None:
    assert len(LAYERS) == 18
    for layer in LAYERS:
        assert names("strict", all_but(layer)) == [layer]
    assert names("none", {}, "memory") == []


def test_a_layer_that_was_not_asked_for_is_not_missing() -> None:
    layers = all_but("own_uid", "cgroup_ns", "net_ns", instead=UNASKED)

    assert (names("standard", layers), names("strict", layers)) == ([], [])


def test_a_layer_that_was_not_tried_is_missing() -> None:
    tried = {name: YES for name in LAYERS if name != "seccomp"}

    (lack,) = missing_layers("standard", tried)

    assert (lack.layer, lack.reason) == ("seccomp", "not tried")


@each_row(("limit", "layer"), LIMIT_LAYERS.items())
def test_a_limit_that_was_named_must_hold_unless_it_is_waived(limit: str, layer: str) -> None:
    without = all_but(layer)
    walls = [layer] if layer in WALL_LAYERS else []  # a waiver is for a limit, not for the wall that also keeps it

    assert names("standard", without, limit) == [layer]
    assert names("standard", without, limit, waived=(limit,)) == walls
    assert names("standard", all_but("cpu"), "cpu_quota", "memory", waived=("memory",)) == ["cpu"]


def test_strict_knows_no_waiver() -> None:
    assert names("strict", all_but("cpu"), "cpu_quota", waived=("cpu_quota",)) == ["cpu"]


def test_the_version_1_name_of_standard_means_the_same() -> None:
    for layer in LAYERS:
        assert names("best_effort", all_but(layer)) == names("standard", all_but(layer))


@pytest.mark.parametrize(("level", "named"), [("paranoid", ()), ("standard", ("memroy",))])
def test_an_unknown_level_or_layer_is_refused(level: str, named: tuple[str, ...]) -> None:
    with pytest.raises(KeyError):
        missing_layers(level, all_but(), named)


def test_a_lack_says_what_to_change() -> None:
    assert str(missing_layers("standard", all_but("user_ns"))[0]) == "user_ns: why (knob)"


def test_the_record_of_a_spawn_is_judged_by_the_same_rule() -> None:
    def layer(asked: bool, active: bool) -> Layer:
        return Layer(asked, active, "m", "e", "" if active else "r")

    record = {name: layer(True, name != "landlock") for name in LAYERS} | {"net_ns": layer(False, False)}

    assert names("standard", findings_of_record(record)) == []
    assert [lack.reason for lack in missing_layers("strict", findings_of_record(record))] == ["r"]


@given(st.sets(st.sampled_from(LAYERS)), st.sets(st.sampled_from(LAYERS)))
def test_a_sandbox_with_more_layers_misses_nothing_more(absent: set[str], given_back: set[str]) -> None:
    order = ("none", "standard", "strict")
    fewer, more = all_but(*absent), all_but(*(absent - given_back))

    assert order.index(best_level(more)) >= order.index(best_level(fewer))
    for level in order:
        assert set(names(level, more)) <= set(names(level, fewer))


def test_the_verdict_is_a_sentence_of_one_line() -> None:
    grouped = {name: Finding(True, mechanism="cgroup v2") for name in ("memory", "pids", "cpu")}
    rlimits = {**{name: Finding(True, "no group", "delegate", "RLIMIT") for name in ("memory", "pids")}, "cpu": NO}
    landlock = {"landlock": Finding(True, mechanism="ABI 7")}
    yes = all_but()

    said = [
        levels.describe_default({**yes, **grouped, **landlock}, 0),
        levels.describe_default({**yes, **rlimits, "landlock": NO, "own_uid": UNASKED}, 1000),
        levels.describe_default({**yes, **grouped, "cpu": NO, **landlock}, 0),
        levels.describe_default({**all_but(*WALL_LAYERS), **rlimits}, 1000),
        levels.describe_default({**all_but("pid_ns"), **grouped}, 1000),
    ]

    assert said == [
        "standard: all walls; limits by cgroup v2; Landlock ABI 7; a uid for each agent",
        "standard: all walls; limits by rlimits, cpu not limited; no Landlock; agents run as uid 1000",
        "standard: all walls; limits by cgroup v2, cpu not limited; Landlock ABI 7; a uid for each agent",
        "none: user_ns, pid_ns, mount_ns and 10 more not available: no agent can start in a sandbox",
        "none: pid_ns not available: no agent can start in a sandbox",
    ]
    assert max(map(len, said)) <= 100
