"""Many agents and one provider of models, with and without a kernel in between: ``python -m tests.speed.measure.llm``.

Prints every figure; with ``--docs`` they also go to docs/reference/llm-figures.md and docs/figures/.
"""

import argparse
import os
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.speed.llm import gateway, report
from tests.speed.llm.overhead import Overhead, overhead
from tests.speed.llm.simulation.play import Stage
from tests.speed.llm.simulation.scenes import (
    AT_ONCE,
    CONTEST,
    FIRST_COME,
    FLOODED,
    KERNEL,
    PACKAGE,
    QUICK,
    ROUND_ROBIN,
    WHOLE,
    Played,
    Programme,
)
from tests.speed.place import Place
from tests.speed.results import Figure, Result, Row, as_text, machine

ROUNDS, QUICK_ROUNDS = 500, 200
ROWS = (
    Row("THINK, agents that always have work: Jain's index", "", least=0.99, floor="round-robin", more=True),
    Row("THINK, beside a flooder: p95 wait of light agents", " ms", most_ratio=0.1, floor="first come"),
    Row("THINK, all agents at once: requests that fail", " %", most=1, floor="direct"),
    Row("THINK: p50 above that of a direct call", " ms", most=1.5, floor="direct"),
)


def play(stage: Stage, programme: Programme) -> list[Played]:
    played = []
    for scene, strategies in programme:
        for strategy in strategies:
            played.append(scene.play(stage, strategy))
            print(f"{scene.name}, {played[-1].n} agents, {strategy}", file=sys.stderr, flush=True)
    return played


def play_gateway(stage: Stage) -> list[gateway.Row]:
    rows = []
    for row in gateway.whole(stage):
        rows.append(row)
        print(f"{row.case}, concurrency {row.concurrency}", file=sys.stderr, flush=True)
    return rows


def llm(place: Place) -> list[Result]:
    """What was promised, for ``make bench``; on every CPU, for there are three processes."""
    stage = Stage(place.directory, place.kernel)
    extra = overhead(stage, QUICK_ROUNDS, place.cpu)
    return rows(play(stage, QUICK), extra)


def rows(played: Sequence[Played], extra: Overhead) -> list[Result]:
    """Each promise, where most agents were there to judge it by."""
    return [_fair(played), _calm(played), _answered(played), _cheap(extra)]


def _pair(played: Sequence[Played], scene: str, beside: str) -> tuple[Played, Played]:
    """With the kernel, and with another strategy; of the most agents."""
    mine, other = (
        max((each for each in played if each.scene == scene and each.strategy == strategy), key=lambda each: each.n)
        for strategy in (KERNEL, beside)
    )
    return mine, other


def _fair(played: Sequence[Played]) -> Result:
    mine, other = _pair(played, CONTEST, ROUND_ROBIN)
    assert mine.jain is not None
    assert other.jain is not None
    return Result(ROWS[0], Figure(mine.jain), Figure(other.jain), note=f"{mine.n} agents")


def _calm(played: Sequence[Played]) -> Result:
    mine, other = _pair(played, FLOODED, FIRST_COME)
    wait, beside = (each.figures.kinds["light"].waits.p95 * 1000 for each in (mine, other))
    return Result(ROWS[1], Figure(wait), Figure(beside), Figure(wait / beside), f"{mine.n} agents")


def _answered(played: Sequence[Played]) -> Result:
    mine, other = _pair(played, AT_ONCE, PACKAGE)
    failed, beside = (each.figures.failed / each.figures.asked * 100 for each in (mine, other))
    return Result(ROWS[2], Figure(failed), Figure(beside), note=f"{mine.n} agents")


def _cheap(extra: Overhead) -> Result:
    direct, above = ([seconds * 1000 for seconds in series] for series in (extra.direct, extra.above))
    return Result(ROWS[3], Figure.of(above), Figure.of(direct))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.speed.measure.llm", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="only what the promises need: a minute, not four")
    parser.add_argument("--gateway", action="store_true", help="only several models and classes: three minutes")
    parser.add_argument("--docs", action="store_true", help="write the page, the CSV and the plot too")
    parser.add_argument(
        "--kernel",
        default=shlex.join([sys.executable, "-m", "agentos", "run"]),
        help="the command that the configuration and its options are added to",
    )
    asked = parser.parse_args(argv)
    if asked.docs and asked.quick:
        parser.error("--docs needs all figures: leave out --quick")
    about = machine()
    with tempfile.TemporaryDirectory(prefix="line-", ignore_cleanup_errors=True) as directory:
        stage = Stage(Path(directory), shlex.split(asked.kernel))
        if asked.gateway:
            measured = play_gateway(stage)
            print(report.gateway_table(measured))
            if asked.docs:
                report.write_gateway(about, measured)
            return 0
        extra = overhead(stage, QUICK_ROUNDS if asked.quick else ROUNDS, max(os.sched_getaffinity(0)))
        played = play(stage, QUICK if asked.quick else WHOLE)
    promised = rows(played, extra)
    print(as_text(about, promised), report.as_markdown(played), sep="\n\n")
    if asked.docs:
        report.write(about, promised, played)
    return 0


if __name__ == "__main__":
    sys.exit(main())
