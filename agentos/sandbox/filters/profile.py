"""Seccomp profiles as data, and their compilation to a BPF filter.

System calls of another architecture (int 0x80, x32) kill the process: their numbers would be looked up in the wrong
table.

Numbers are found by binary search over ranges with the same verdict: some 200 instructions, of which a call takes 12 on
average and 17 at most (145 and 11 on aarch64). Linux 5.11 and later cache which numbers are always allowed and skip the
filter for them.
"""

import errno
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from msgspec import Struct

from . import bpf
from .bpf import Branch, Instruction, Jump, Label, Source
from .syscall_numbers import NUMBERS

ARCHITECTURES = MappingProxyType({"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7})  # AUDIT_ARCH_*
X32 = 0x4000_0000  # x86_64: this bit in a number selects the x32 table

ALLOW = 0x7FFF_0000
KILL_PROCESS = 0x8000_0000
ERRNO = 0x0005_0000  # the lower 16 bits are the error


def errno_verdict(error: int) -> int:
    """Return the verdict that makes a call fail with this errno."""
    return ERRNO | error


class AnyBit(Struct, frozen=True):
    """True if an argument has one of these bits; ``bits`` may have 64 where the kernel takes a long."""

    argument: int
    bits: int


class NoBit(Struct, frozen=True):
    """True if the low word of an argument has none of these bits."""

    argument: int
    bits: int


class NoneOf(Struct, frozen=True):
    """True if the low word of an argument is none of these."""

    argument: int
    values: tuple[int, ...]


class OneOf(Struct, frozen=True):
    """True if the low word of an argument is one of these."""

    argument: int
    values: tuple[int, ...]


Condition = AnyBit | NoBit | NoneOf | OneOf


class Refusal(Struct, frozen=True):
    """The call fails with ``error`` if all conditions hold."""

    error: int
    when: tuple[Condition, ...]


Rule = int | tuple[Refusal, ...]
"""A verdict, or refusals of which the first match applies; if none matches, the call is allowed."""


class Profile(Struct, frozen=True):
    """Rules by the name of the call, and the verdict for known calls without a rule."""

    name: str
    rules: Mapping[str, Rule]
    others: int

    def rule(self, call: str) -> Rule:
        """Return the rule of a call, by name."""
        return self.rules.get(call, self.others)


def compile_filter(profile: Profile, architecture: str) -> tuple[Instruction, ...]:
    """Compile a profile. ``ValueError`` if a rule is for a call that no architecture has."""
    if unknown := set(profile.rules) - {name for table in NUMBERS.values() for name in table}:
        raise ValueError(f"no such system call: {', '.join(sorted(unknown))}")
    rules = {number: profile.rule(name) for name, number in NUMBERS[architecture].items()}
    labels = {
        rule: f"rule {at}" for at, rule in enumerate(dict.fromkeys((*rules.values(), errno_verdict(errno.ENOSYS))))
    }
    foreign: list[Source] = []
    if architecture == "x86_64":
        # -1 has that bit too; some libraries pass it for an unknown system call.
        foreign = [Label("foreign"), Branch(bpf.JEQ, 0xFFFF_FFFF, labels[errno_verdict(errno.ENOSYS)], "kill")]
    return bpf.assemble(
        [
            bpf.load(bpf.ARCH),
            Branch(bpf.JEQ, ARCHITECTURES[architecture], no="kill"),
            bpf.load(bpf.NR),
            *([Branch(bpf.JGE, X32, yes="foreign")] if foreign else []),
            *_emit_search([(first, labels[rule]) for first, rule in _rule_ranges(rules)], "search"),
            *foreign,
            *(item for rule, label in labels.items() for item in _emit_rule(rule, label)),
            *(Label("kill"), bpf.return_value(KILL_PROCESS)),
        ]
    )


def _rule_ranges(rules: Mapping[int, Rule]) -> Iterator[tuple[int, Rule]]:
    """Yield the first number of each range with the same rule; the last range has no end."""
    former: Rule | None = None
    for number in range(max(rules) + 2):
        rule = rules.get(number, errno_verdict(errno.ENOSYS))
        if rule != former:
            yield number, rule
        former = rule


def _emit_search(ranges: Sequence[tuple[int, str]], name: str) -> Iterator[Source]:
    """Jump to the label of the range that contains A."""
    if len(ranges) == 1:
        yield Jump(ranges[0][1])
    elif len(ranges) == 3 and ranges[0][1] == ranges[2][1] and ranges[1][0] + 1 == ranges[2][0]:
        yield Branch(bpf.JEQ, ranges[1][0], ranges[1][1], ranges[0][1])
    else:
        middle = len(ranges) // 2
        low, high = ranges[:middle], ranges[middle:]
        yield Branch(
            bpf.JGE,
            high[0][0],
            yes=high[0][1] if len(high) == 1 else f"{name}+",
            no=low[0][1] if len(low) == 1 else None,
        )
        if len(low) > 1:
            yield from _emit_search(low, f"{name}-")
        if len(high) > 1:
            yield Label(f"{name}+")
            yield from _emit_search(high, f"{name}+")


def _emit_rule(rule: Rule, label: str) -> Iterator[Source]:
    yield Label(label)
    if isinstance(rule, int):
        yield bpf.return_value(rule)
        return
    for at, refusal in enumerate(rule):
        holds_not = f"{label} refusal {at} no"
        for index, condition in enumerate(refusal.when):
            yield from _emit_condition(condition, f"{label} refusal {at} condition {index} yes", holds_not)
        yield bpf.return_value(errno_verdict(refusal.error))
        yield Label(holds_not)
    yield bpf.return_value(ALLOW)


def _emit_condition(condition: Condition, yes: str, no: str) -> Iterator[Source]:
    """Fall through if the condition holds, else jump to ``no``."""
    low = 16 + 8 * condition.argument
    match condition:
        case AnyBit(_, bits):
            words = [(at, word) for at, word in ((low, bits & 0xFFFF_FFFF), (low + 4, bits >> 32)) if word]
            for offset, word in words:
                yield bpf.load(offset)
                yield Branch(bpf.JSET, word, yes, no if (offset, word) == words[-1] else None)
        case NoBit(_, bits):
            yield bpf.load(low)
            yield Branch(bpf.JSET, bits, no)
        case OneOf(_, values):
            yield bpf.load(low)
            for value in values:
                yield Branch(bpf.JEQ, value, yes, no if value == values[-1] else None)
        case NoneOf(_, values):
            yield bpf.load(low)
            for value in values:
                yield Branch(bpf.JEQ, value, no)
    yield Label(yes)
