"""The assembler, the checks and the interpreter: against a naive reading of the source, and against the kernel."""

import json
import os
import random
import struct
import subprocess
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.sandbox.filters import bpf
from agentos.sandbox.filters.bpf import (
    Branch,
    Instruction,
    InvalidProgram,
    Jump,
    Label,
    SyscallData,
    assemble,
    load,
    return_value,
    run,
    validate,
)
from tests.support.runs.rows import each_row
from tests.support.wire import PATIENCE

LOAD, ADD, RETURN_A = bpf.LD | bpf.IMM, bpf.ALU | bpf.ADD | bpf.K, bpf.RET | bpf.A

# Answers for each program on a line of its input: does the kernel take it? A thread with a filter of its own keeps
# every other filter from being put on all threads, which the kernel finds out only after it has checked the program.
CHECK = """
import ctypes, json, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]
def install(filters, flags):
    program = Program(len(filters) // 8, filters)
    return libc.syscall(SECCOMP, 1, flags, ctypes.byref(program)), ctypes.get_errno()
assert libc.prctl(38, 1, 0, 0, 0) == 0
ready, over = threading.Event(), threading.Event()
def hold():
    assert install(ALLOW, 0) == (0, 0)
    ready.set()
    over.wait()
threading.Thread(target=hold, daemon=True).start()
ready.wait()
for line in sys.stdin:
    result, error = install(bytes.fromhex(line), 1)
    assert result > 0 or (result, error) == (-1, 22), (result, error, line)
    print(json.dumps(result > 0))
"""

# Answers for each program and arguments on a line: the errno that call 999 fails with, or null if it kills.
EXECUTE = """
import ctypes, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]
assert libc.prctl(38, 1, 0, 0, 0) == 0
for line in sys.stdin:
    filters, args = json.loads(line)
    filters = bytes.fromhex(filters)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        program = Program(len(filters) // 8, filters)
        assert libc.syscall(SECCOMP, 1, 0, ctypes.byref(program)) == 0
        ctypes.set_errno(0)
        libc.syscall(999, *map(ctypes.c_ulong, args))
        os.write(writer, str(ctypes.get_errno()).encode())
        os._exit(0)
    os.close(writer)
    print(os.read(reader, 100).decode() or "null")
    os.close(reader)
    os.waitpid(child, 0)
"""
SECCOMP = {"x86_64": 317, "aarch64": 277}


def in_child(script: str, lines: Sequence[str]) -> list[object]:
    known = f"SECCOMP = {SECCOMP[os.uname().machine]}\nALLOW = {bpf.pack([return_value(0x7FFF0000)])!r}\n"
    done = subprocess.run(
        [sys.executable, "-I", "-c", known + script],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_an_instruction_is_eight_bytes() -> None:
    assert Instruction(0x15, 1, 2, 0xAABBCCDD).pack() == b"\x15\x00\x01\x02\xdd\xcc\xbb\xaa"


def test_a_system_call_is_64_bytes_and_negative_arguments_are_what_the_register_holds() -> None:
    data = SyscallData(nr=-1, arch=7, args=(1, -1), instruction_pointer=9).pack()

    assert data == struct.pack("<iIQQqQQQQ", -1, 7, 9, 1, -1, 0, 0, 0, 0)
    assert len(data) == bpf.DATA_SIZE


@given(st.lists(st.builds(Instruction, *(st.integers(0, limit) for limit in (0xFFFF, 255, 255, 0xFFFFFFFF)))))
def test_instructions_survive_packing(program: list[Instruction]) -> None:
    assert list(bpf.unpack(bpf.pack(program))) == program


def test_labels_become_distances() -> None:
    program = assemble(
        [
            load(0),
            Branch(bpf.JEQ, 5, yes="five"),
            Jump("other"),
            Label("five"),
            return_value(1),
            Label("other"),
            return_value(2),
        ]
    )

    assert program == (
        Instruction(0x20),
        Instruction(0x15, 1, 0, 5),
        Instruction(0x05, k=1),
        Instruction(0x06, k=1),
        Instruction(0x06, k=2),
    )
    assert [run(program, SyscallData(number, 0)).value for number in (5, 6)] == [1, 2]


@each_row(
    ("source", "reason"),
    [
        ([Jump("nowhere"), return_value(0)], "'nowhere' is jumped to and never set"),
        ([Label("a"), Label("a"), return_value(0)], "'a' is set twice"),
        ([Label("a"), load(0), Jump("a"), return_value(0)], "'a' is behind"),
        ([Label("a"), Branch(bpf.JEQ, 0, yes="a"), return_value(0)], "'a' is behind"),
        ([return_value(0), Label("end")], None),
        ([Jump("end"), return_value(0), Label("end")], "jumps behind the end"),
        ([load(0)], "must be RET"),
    ],
)
def test_a_source_that_makes_no_program_is_refused(source: list[bpf.Source], reason: str | None) -> None:
    if reason is None:
        assemble(source)
    else:
        with pytest.raises(InvalidProgram, match=reason):
            assemble(source)


@each_row("between", [254, 255, 256, 257, 1000])
@each_row("sides", ["yes", "no", "both"])
def test_a_condition_reaches_labels_that_are_too_far_for_it(between: int, sides: str) -> None:
    yes = "yes" if sides in ("yes", "both") else None
    no = "no" if sides in ("no", "both") else None
    filler = [Instruction(ADD, k=1)] * between
    program = assemble(
        [
            load(0),
            Branch(bpf.JEQ, 5, yes, no),
            *filler,
            return_value(0),
            Label("yes"),
            return_value(1),
            Label("no"),
            return_value(2),
        ]
    )

    assert bpf.unpack(bpf.pack(program)) == program
    assert run(program, SyscallData(5, 0)).value == (1 if yes else 0)
    assert run(program, SyscallData(6, 0)).value == (2 if no else 0)


@st.composite
def sources(draw: st.DrawFn) -> list[bpf.Source]:
    """Counting instructions, labels, and jumps to labels further down, some of them far."""
    blocks = draw(st.integers(1, 12))
    source: list[bpf.Source] = [load(0)]
    for block in range(blocks):
        source.append(Label(f"block {block}"))
        source += [Instruction(ADD, k=draw(st.integers(1, 9)))] * draw(st.sampled_from([0, 1, 3, 100, 254, 255]))
        targets = st.sampled_from([f"block {later}" for later in range(block + 1, blocks + 1)])
        if draw(st.booleans()):
            condition = draw(st.sampled_from([bpf.JEQ, bpf.JGT, bpf.JGE, bpf.JSET]))
            target = st.none() | targets
            source.append(Branch(condition, draw(st.integers(0, 2000)), draw(target), draw(target)))
        elif draw(st.booleans()):
            source.append(Jump(draw(targets)))
    return [*source, Label(f"block {blocks}"), Instruction(RETURN_A)]


def read_naively(source: list[bpf.Source], number: int) -> int:
    """What a source means, without any distances."""
    at, a = 0, 0
    while True:
        item = source[at]
        at += 1
        to: str | None = None
        match item:
            case Instruction(code) if code == RETURN_A:
                return a
            case Instruction(code, k=k):
                a = a + k if code == ADD else number
            case Jump(to):
                pass
            case Branch(condition, k, yes, no):
                holds = {bpf.JEQ: a == k, bpf.JGT: a > k, bpf.JGE: a >= k, bpf.JSET: a & k != 0}
                to = yes if holds[condition] else no
        if to is not None:
            at = source.index(Label(to))


@given(sources(), st.integers(0, 2000))
def test_assembled_programs_do_what_their_source_says(source: list[bpf.Source], number: int) -> None:
    program = assemble(source)

    assert run(program, SyscallData(number, 0)).value == read_naively(source, number)


END = return_value(0)
REFUSED = {
    "no instruction": [],
    "too many": [END] * 4097,
    "no RET at the end": [load(0)],
    "a jump behind the end": [Instruction(bpf.JMP | bpf.JA, k=1), END],
    "a jump backwards": [END, Instruction(bpf.JMP | bpf.JA, k=0xFFFFFFFE), END],
    "a condition that leads behind the end": [Instruction(bpf.JMP | bpf.JEQ, 0, 1, 0), END],
    "a word behind the data": [load(64), END],
    "half a word": [load(2), END],
    "a half-word load": [Instruction(0x28), END],
    "an indirect load": [Instruction(0x40), END],
    "modulo, which seccomp lacks": [Instruction(0x94, k=3), END],
    "division by zero": [Instruction(bpf.ALU | bpf.DIV, k=0), END],
    "a shift by 32": [Instruction(bpf.ALU | bpf.LSH, k=32), END],
    "a cell that isn't there": [Instruction(bpf.ST, k=16), END],
    "a cell that isn't written": [Instruction(bpf.LD | bpf.MEM, k=3), END],
    "a cell that one way doesn't write": [
        *(Instruction(bpf.JMP | bpf.JEQ, 1, 0), Instruction(bpf.ST, k=3), Instruction(bpf.LD | bpf.MEM, k=3), END)
    ],
}
ACCEPTED = {
    "the longest": [END] * 4096,
    "RET A": [Instruction(RETURN_A)],
    "the last word": [load(60), END],
    "a jump to the last instruction": [Instruction(bpf.JMP | bpf.JA, k=0), END],
    "a cell that both ways write": [
        *(Instruction(bpf.JMP | bpf.JEQ, 2, 0), Instruction(bpf.ST, k=3), Instruction(bpf.JMP | bpf.JA, k=1)),
        *(Instruction(bpf.STX, k=3), Instruction(bpf.LD | bpf.MEM, k=3), END),
    ],
    "an unreachable end": [Instruction(bpf.JMP | bpf.JA, k=1), END, END],
}


@each_row("program", REFUSED.values(), ids=REFUSED)
def test_what_the_kernel_would_refuse_is_refused(program: list[Instruction]) -> None:
    with pytest.raises(InvalidProgram):
        validate(program)


@each_row("program", ACCEPTED.values(), ids=ACCEPTED)
def test_what_the_kernel_would_take_is_taken(program: list[Instruction]) -> None:
    validate(program)


def takes(program: Sequence[Instruction]) -> bool:
    try:
        validate(program)
    except InvalidProgram:
        return False
    return True


def scribble(dice: random.Random, length: int) -> list[Instruction]:
    """Instructions that are mostly possible, in an order that may not be."""
    odd = [0x28, 0x30, 0x40, 0x94, 0x9C, 0xB1, 0x16, 0xFF, 0x120, *range(0x60, 0x70)]
    codes = sorted(bpf.ALLOWED_CODES) * 8 + odd
    return [
        Instruction(
            dice.choice(codes),
            dice.choice((0, 0, 1, 2, 5)),
            dice.choice((0, 0, 1, 2, 5)),
            dice.choice((0, 1, 3, 4, 8, 15, 16, 24, 31, 32, 60, 64, 0xFFFFFFFF)),
        )
        for _ in range(length)
    ]


def test_the_kernel_agrees_on_which_programs_are_valid() -> None:
    dice = random.Random(1)  # not for secrets: for programs that can be made again
    programs = [[*scribble(dice, dice.randint(0, 5)), END] for _ in range(3000)]
    programs += [scribble(dice, dice.randint(1, 4)) for _ in range(500)]
    programs += [*REFUSED.values(), *ACCEPTED.values()]

    verdicts = in_child(CHECK, [bpf.pack(program).hex() for program in programs])

    assert verdicts == [takes(program) for program in programs]
    assert 500 < sum(map(bool, verdicts)) < len(programs) - 500, "some of both"


def test_the_kernel_agrees_on_what_programs_return() -> None:
    arch = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[os.uname().machine]
    dice = random.Random(2)
    start = [load(bpf.NR), Instruction(bpf.JMP | bpf.JEQ, 1, 0, 999), return_value(0x7FFF0000), load(16)]
    end = [Instruction(bpf.ALU | bpf.AND, k=0xFFF), Instruction(bpf.ALU | bpf.OR, k=0x50000), Instruction(RETURN_A)]
    cases: list[tuple[str, tuple[int, ...]]] = []
    expected: list[int | None] = []
    while len(cases) < 300:
        upper = [Instruction(bpf.ALU | bpf.RSH, k=20)] * dice.randint(0, 1)  # an errno has twelve bits
        body = [part for part in scribble(dice, dice.randint(3, 30)) if not shows_addresses(part)]
        program = [*start, Instruction(bpf.MISC | bpf.TAX), load(24), *body, *upper, *end]
        args = tuple(dice.choice((0, 3, dice.getrandbits(64))) for _ in range(6))
        if takes(program) and (value := run(program, SyscallData(999, arch, args)).value) >> 16 in (0, 5):
            cases.append((bpf.pack(program).hex(), args))
            expected.append(value & 0xFFF if value >> 16 else None)

    assert in_child(EXECUTE, [json.dumps(case) for case in cases]) == expected
    assert None in expected, "one that was killed"
    assert len(set(expected)) > 50


def shows_addresses(part: Instruction) -> bool:
    return part.code & 7 == bpf.RET or (part.code == bpf.LD | bpf.ABS and part.k in (8, 12))
