"""What is shown holds every figure, losses too."""

import csv
from pathlib import Path
from xml.etree import ElementTree

from .figures import Figures, OfKind, Waits
from .report import as_markdown, losses, plot, write_csv
from .simulation.loads import Kind
from .simulation.scenes import AT_ONCE, CONTEST, FIRST_COME, FLOODED, KERNEL, PACKAGE, Played


def played(strategy: str, makespan: float, failed: int = 0) -> Played:
    return Played(AT_ONCE, 5, strategy, Figures({"light": OfKind(100, failed, Waits(1, 1, 1))}, makespan, 0, 0))


def test_where_another_does_better_is_told() -> None:
    (lost,) = losses([played(FIRST_COME, 1.0), played(KERNEL, 2.0)])

    assert lost[1:] == ("5", "makespan, s", "2.00", f"{FIRST_COME}: 1.00")


def test_a_strategy_that_answers_half_of_them_does_not_do_better_by_being_done_early() -> None:
    assert losses([played(PACKAGE, 1.0, failed=50), played(KERNEL, 2.0)]) == []


def test_a_strategy_that_nearly_always_answers_is_compared_and_its_failures_are_told() -> None:
    (lost,) = losses([played(PACKAGE, 1.0, failed=5), played(KERNEL, 2.0)])

    assert lost[-1] == f"{PACKAGE} (5.0% failed): 1.00"


def test_the_file_has_a_line_for_each_kind_of_agent_in_each_play(tmp_path: Path) -> None:
    kinds: dict[Kind, OfKind] = {"light": OfKind(10, 1, Waits(0.1, 0.2, 0.3)), "heavy": OfKind(2, 0, Waits(1, 2, 3))}
    write_csv(tmp_path / "llm.csv", [Played(FLOODED, 5, KERNEL, Figures(kinds, 4.0, 700, 7))])

    lines = list(csv.DictReader((tmp_path / "llm.csv").read_text().splitlines()))

    assert [(line["kind"], line["asked"], line["failed"], line["wait_p95"]) for line in lines] == [
        ("light", "10", "1", "0.2000"),
        ("heavy", "2", "0", "2.0000"),
    ]


def test_every_play_has_a_row_and_every_scene_a_bar_of_each_strategy(tmp_path: Path) -> None:
    each = Figures({"light": OfKind(10, 1, Waits(0.1, 0.2, 0.3))}, 4.0, 700, 7)
    whole = [
        Played(scene, 5, strategy, each, 0.9 if scene == CONTEST else None)
        for scene in (FLOODED, AT_ONCE, CONTEST)
        for strategy in (FIRST_COME, KERNEL)
    ]
    plot(tmp_path / "llm.svg", whole)

    assert as_markdown(whole).count(f"| {KERNEL} ") == 3
    assert ElementTree.parse(tmp_path / "llm.svg").getroot().tag.endswith("svg")
