"""Many agents and one provider of models, with and without a kernel in between: ``python -m tests.speed.measure_llm``.

Prints every figure; with ``--docs`` they also go to docs/reference/llm-figures.md and docs/figures/.
"""

import argparse
import os
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.speed.llm import report
from tests.speed.llm.overhead import Overhead, overhead
from tests.speed.llm.play import Stage
from tests.speed.llm.scenes import (
    AT_ONCE,
    CONTEST,
    FIRST_COME,
    FLOODED,
    KERNEL,
    PACKAGE,
    QUICK,
    ROUND_ROBIN,
    TARGETS,
    WHOLE,
    Played,
    Programme,
)
from tests.speed.place import Place
from tests.speed.results import Row, as_text, machine

ROUNDS, QUICK_ROUNDS = 500, 200
FAIR, SHARE, FAILED, COST = 0.99, 0.1, 0.01, 0.0015  # the targets


def play(stage: Stage, programme: Programme) -> list[Played]:
    played = []
    for scene, strategies in programme:
        for strategy in strategies:
            played.append(scene.play(stage, strategy))
            print(f"{scene.name}, {played[-1].n} agents, {strategy}", file=sys.stderr, flush=True)
    return played


def llm(place: Place) -> list[Row]:
    """What was promised, for ``make bench``; on every CPU, for there are three processes."""
    stage = Stage(place.directory, place.kernel)
    extra = overhead(stage, QUICK_ROUNDS if place.quick else ROUNDS, place.cpu)
    return rows(play(stage, QUICK if place.quick else TARGETS), extra)


def rows(played: Sequence[Played], extra: Overhead) -> list[Row]:
    """Each promise, where most agents were there to judge it by."""
    return [*_fair(played), *_calm(played), *_answered(played), _cheap(extra)]


def _pair(played: Sequence[Played], scene: str, beside: str) -> tuple[Played, Played]:
    """With the kernel, and with another strategy; of the most agents."""
    mine, other = (
        max((each for each in played if each.scene == scene and each.strategy == strategy), key=lambda each: each.n)
        for strategy in (KERNEL, beside)
    )
    return mine, other


def _fair(played: Sequence[Played]) -> list[Row]:
    mine, other = _pair(played, CONTEST, ROUND_ROBIN)
    assert mine.jain is not None
    assert other.jain is not None
    return [
        Row(
            f"THINK: Jain's index, {mine.n} agents with work",
            f"{mine.jain:.3f}",
            f"round-robin: {other.jain:.3f}",
            target=f">= {FAIR}",
            met=mine.jain >= FAIR,
            numbers={"jain": mine.jain, "round_robin_jain": other.jain},
        )
    ]


def _calm(played: Sequence[Played]) -> list[Row]:
    mine, other = _pair(played, FLOODED, FIRST_COME)
    wait, beside = (each.figures.kinds["light"].waits.p95 for each in (mine, other))
    return [
        Row(
            f"  beside a flooder, {mine.n} agents: light ones' p95 wait",
            f"{wait * 1000:.0f} ms",
            f"first come: {beside * 1000:.0f} ms",
            f"{wait / beside:.3f}",
            f"<= {SHARE} x first come",
            wait <= SHARE * beside,
            {"light_p95_ms": wait * 1000, "first_come_light_p95_ms": beside * 1000},
        )
    ]


def _answered(played: Sequence[Played]) -> list[Row]:
    mine, other = _pair(played, AT_ONCE, PACKAGE)
    failed, beside = (each.figures.failed / each.figures.asked for each in (mine, other))
    return [
        Row(
            f"  {mine.n} agents at once: requests that fail",
            f"{failed:.1%}",
            f"direct: {beside:.0%}",
            target=f"<= {FAILED:.0%}",
            met=failed <= FAILED,
            numbers={"failed": failed, "direct_failed": beside},
        )
    ]


def _cheap(extra: Overhead) -> Row:
    return Row(
        "  a call through the kernel, p50, above a direct one",
        f"{extra.each * 1000:.2f} ms",
        f"direct: {extra.direct * 1000:.2f} ms",
        target=f"<= {COST * 1000:g} ms",
        met=extra.each <= COST,
        numbers={"overhead_ms": extra.each * 1000, "direct_ms": extra.direct * 1000},
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.speed.measure_llm", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="only what the promises need: a minute, not four")
    parser.add_argument("--docs", action="store_true", help="write the page, the CSV and the plot too")
    parser.add_argument(
        "--kernel",
        default=shlex.join([sys.executable, "-m", "agentos", "run"]),
        help="the command that the configuration and its options are added to",
    )
    asked = parser.parse_args(argv)
    about = machine()
    with tempfile.TemporaryDirectory(prefix="line-", ignore_cleanup_errors=True) as directory:
        stage = Stage(Path(directory), shlex.split(asked.kernel))
        extra = overhead(stage, QUICK_ROUNDS if asked.quick else ROUNDS, max(os.sched_getaffinity(0)))
        played = play(stage, QUICK if asked.quick else WHOLE)
    promised = rows(played, extra)
    print(as_text(about, promised), report.as_markdown(played), sep="\n\n")
    if asked.docs:
        report.write(about, promised, played)
    return 0


if __name__ == "__main__":
    sys.exit(main())
