"""``agentos doctor``: tests which isolation this host supports, and tells what to change."""

import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from agentos.userland.cli.columns import format_table, text_width
from agentos.userland.cli.common import Failed, json_option, print_lines
from agentos_sdk import AgentOSError, ConnectionFailed
from agentos_sdk.project import find_project

from .run import find_state_dir

if TYPE_CHECKING:
    from agentos.sandbox.report.doctor import Report
    from agentos.sandbox.report.levels import Finding
    from agentos_attacks import harness
    from agentos_attacks.canaries import Canaries

NO_ATTACKS = "the attacks are a package of their own: pip install ./sdk/agentos_attacks in AgentOS's repository"


@click.command()
@json_option
@click.option("--attack", is_flag=True, help="Attack a kernel from inside its agents, and say what came through.")
def doctor(as_json: bool, attack: bool) -> None:
    """Try what this host can do for agents, and say what to change.

    Needs no kernel. Each layer is tried by building it around a program that does nothing. The exit status is 0 where
    an agent gets standard isolation, and 1 where not; with --attack, 0 where nothing came through that must not.
    """
    from agentos.sandbox.report.doctor import examine_host

    if attack:
        sys.exit(0 if run_attacks(as_json) else 1)
    report = examine_host(find_state_dir())
    facts = find_package_facts()
    print_lines(report_lines(report, text_width(), facts), as_values(report, facts), as_json)
    sys.exit(0 if report.level != "none" else 1)


def run_attacks(as_json: bool) -> bool:
    """Start a kernel, run the attacks inside its agents, print the results; returns whether nothing escaped."""
    from agentos.sandbox.report.doctor import kernel_cgroup

    try:
        from agentos_attacks import kernel, verdicts
        from agentos_attacks.harness import attack
    except ModuleNotFoundError as error:
        if error.name != "agentos_attacks":
            raise
        raise Failed(NO_ATTACKS) from None

    def run(attackers: "Sequence[harness.Attacker]", canaries: "Canaries") -> "harness.AttackResult":
        with kernel_cgroup() as group, kernel.run_kernel(canaries, group) as client:
            return kernel.run_attackers(client, attackers)

    if not as_json:
        click.echo("Attacking the agents of a kernel that is started for it; this takes about ten seconds.", err=True)
    began = time.monotonic()
    try:
        found = attack(run)
    except (kernel.KernelFailed, AgentOSError) as error:
        raise Failed(f"no kernel could be attacked: {error}") from None
    seconds = time.monotonic() - began
    lines = [*verdicts.format_table(found).splitlines(), f"took {seconds:.1f} s"]
    value = {
        "totals": verdicts.count_outcomes(found),
        "seconds": round(seconds, 1),
        "checks": verdicts.to_json(found),
    }
    print_lines(lines, value, as_json)
    return not any(one.outcome in ("escaped", "unclear") for one in found)


def find_package_facts() -> dict[str, str]:
    """Whether the optional packages are there that the project's configuration asks for, if it is right."""
    from agentos.config.host_check import find_packages
    from agentos.config.load import ConfigError, load

    try:
        found = find_packages(load(find_project().file))
    except (ConfigError, ConnectionFailed):  # `agentos check` and `agentos run` say what is wrong
        return {}
    return {table: missing or "the packages that it needs are installed" for table, missing in found.items()}


def as_values(report: "Report", more_facts: Mapping[str, str]) -> dict[str, object]:
    """The report as JSON values."""
    layers = {
        name: {
            "asked": one.asked,
            "works": one.works,
            "mechanism": one.mechanism,
            "reason": one.reason,
            "knob": one.remedy,
        }
        for name, one in report.layers.items()
    }
    return {
        "level": report.level,
        "verdict": report.verdict,
        "layers": layers,
        "facts": {**report.facts, **more_facts},
        "apparmor_profile": report.profile,
    }


def report_lines(report: "Report", width: int, more_facts: Mapping[str, str] = {}) -> Iterator[str]:
    """The verdict, a row for each layer, what to change, and facts about the host."""
    yield report.verdict
    yield report.strict
    yield ""
    rows = [[name, works(one), one.mechanism if one.works else one.reason] for name, one in report.layers.items()]
    yield from wrap_last_column(format_table(rows, ["LAYER", "WORKS", "HOW, OR WHY NOT"]), width, indent=21)
    for remedy, names in remedies(report.layers).items():
        yield ""
        yield from wrap_text(f"For {', '.join(names)}: {remedy}", width, indent="  ")
    if report.profile is not None:
        yield ""
        yield from report.profile.splitlines()
    yield ""
    facts = {**report.facts, **more_facts}
    yield from wrap_last_column(
        format_table([list(fact) for fact in facts.items()], ["HOST", ""]),
        width,
        indent=max(map(len, facts)) + 2,
    )


def works(one: "Finding") -> str:
    """``yes``, ``no``, or ``-`` for a layer that wasn't asked for."""
    return "yes" if one.works else "no" if one.asked else "-"


def remedies(layers: "Mapping[str, Finding]") -> dict[str, list[str]]:
    """What to change, and the layers that need it; a limit that works otherwise would then be a control group's."""
    found: dict[str, list[str]] = {}
    for name, one in layers.items():
        if one.remedy:
            found.setdefault(one.remedy, []).append(f"{name} by a control group" if one.works else name)
    return found


def wrap_last_column(lines: Iterator[str], width: int, indent: int) -> Iterator[str]:
    """Wrap the last column of a table's rows."""
    for line in lines:
        head, tail = line[:indent], line[indent:]
        first, *more = wrap_text(tail, width - indent) or [""]
        yield f"{head}{first}".rstrip()
        yield from (" " * indent + part for part in more)


def wrap_text(text: str, width: int, indent: str = "") -> list[str]:
    """Wrap text without breaking commands and paths."""
    return textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
