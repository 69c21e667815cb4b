"""Classic BPF as seccomp uses it: an assembler with labels, the kernel's checks, and an interpreter.

A program is a sequence of instructions over one accumulator A, one index X, sixteen memory cells and the 64 bytes that
describe a system call. It can only jump forward, so that it always ends. One instruction, ``struct sock_filter``::

    OFFSET  SIZE  FIELD
    0       2     code, what to do: class | size or operation | mode or operand
    2       1     jt, how many instructions to skip where a condition holds
    3       1     jf, how many to skip where it doesn't
    4       4     k, the constant, offset, cell or value

and its input, ``struct seccomp_data``::

    OFFSET  SIZE  FIELD
    0       4     nr, the number of the system call
    4       4     arch, AUDIT_ARCH_*: the architecture that nr belongs to
    8       8     instruction_pointer
    16      6*8   args, as the registers hold them: all 64 bits, though the kernel may use the lower 32 only

A load reads one 32-bit word, so that an argument has a low word and a high one (little-endian machines only).
"""

import operator
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

LD, LDX, ST, STX, ALU, JMP, RET, MISC = range(8)  # classes
IMM, ABS, MEM, LEN = 0x00, 0x20, 0x60, 0x80  # modes of LD and LDX; the size W is 0
ADD, SUB, MUL, DIV, OR, AND, LSH, RSH, NEG, XOR = 0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x80, 0xA0
JA, JEQ, JGT, JGE, JSET = 0x00, 0x10, 0x20, 0x30, 0x40
K, X, A = 0x00, 0x08, 0x10  # operands; A is only RET's
TAX, TXA = 0x00, 0x80

MAX_INSTRUCTIONS = 4096
MEMORY_CELLS = 16
DATA_SIZE = 64  # bytes of struct seccomp_data
NR, ARCH = 0, 4  # offsets in it
MAX_BRANCH = 255  # instructions: the longest conditional jump

_ARITHMETIC: Mapping[int, Callable[[int, int], int]] = {
    ADD: operator.add,
    SUB: operator.sub,
    MUL: operator.mul,
    DIV: operator.floordiv,
    OR: operator.or_,
    AND: operator.and_,
    XOR: operator.xor,
    LSH: lambda a, by: a << (by & 31),
    RSH: lambda a, by: a >> (by & 31),
}
_CONDITIONS: Mapping[int, Callable[[int, int], int]] = {
    JEQ: operator.eq,
    JGT: operator.gt,
    JGE: operator.ge,
    JSET: operator.and_,
}
ALLOWED_CODES = frozenset(
    {LD | ABS, LD | LEN, LDX | LEN, LD | IMM, LDX | IMM, LD | MEM, LDX | MEM, ST, STX, RET | K, RET | A}
    | {ALU | operation | operand for operation in _ARITHMETIC for operand in (K, X)}
    | {ALU | NEG, MISC | TAX, MISC | TXA, JMP | JA}
    | {JMP | condition | operand for condition in _CONDITIONS for operand in (K, X)}
)


class InvalidProgram(ValueError):
    """The kernel would reject this program with EINVAL; the text names the instruction and the reason."""


class Instruction(Struct, frozen=True):
    """One ``struct sock_filter``."""

    code: int
    jt: int = 0
    jf: int = 0
    k: int = 0

    def pack(self) -> bytes:
        """Encode as eight bytes."""
        return struct.pack("=HBBI", self.code, self.jt, self.jf, self.k)


class Label(Struct, frozen=True):
    """A jump target: the instruction that follows."""

    name: str


class Jump(Struct, frozen=True):
    """Jump to a label."""

    label: str


class Branch(Struct, frozen=True):
    """Jump to ``yes`` if ``A condition k`` holds, else to ``no``; ``None`` is the next instruction.

    ``condition`` is one of JEQ, JGT, JGE and JSET.
    """

    condition: int
    k: int
    yes: str | None = None
    no: str | None = None


Source = Instruction | Label | Jump | Branch


class SyscallData(Struct, frozen=True):
    """A system call as a filter sees it."""

    nr: int
    arch: int
    args: tuple[int, ...] = ()
    instruction_pointer: int = 0

    def pack(self) -> bytes:
        """Encode as ``struct seccomp_data``; negative values become what the register holds."""
        args = (*self.args, *(0 for _ in range(6 - len(self.args))))
        words = (value & 0xFFFF_FFFF_FFFF_FFFF for value in (self.instruction_pointer, *args))
        return struct.pack("<II7Q", self.nr & 0xFFFF_FFFF, self.arch, *words)


class Outcome(Struct, frozen=True):
    """The return value of a program, and the number of instructions that were executed."""

    value: int
    steps: int


def load(offset: int) -> Instruction:
    """Load the word at ``offset`` of ``struct seccomp_data`` into A."""
    return Instruction(LD | ABS, k=offset)


def return_value(value: int) -> Instruction:
    """Return this value."""
    return Instruction(RET | K, k=value)


def pack(program: Iterable[Instruction]) -> bytes:
    """Encode a program for the kernel: an array of ``struct sock_filter``."""
    return b"".join(instruction.pack() for instruction in program)


def unpack(filters: bytes) -> tuple[Instruction, ...]:
    """Decode an array of ``struct sock_filter``."""
    return tuple(Instruction(*fields) for fields in struct.iter_unpack("=HBBI", filters))


def assemble(source: Sequence[Source]) -> tuple[Instruction, ...]:
    """Resolve the labels, and check the program as the kernel does.

    A conditional jump reaches 255 instructions. If its label is further away, it jumps to an unconditional jump placed
    right behind it, which reaches any distance.
    """
    far: set[tuple[int, str]] = set()
    while True:
        layout = _lay_out(source, far)
        further = far | set(_find_far_jumps(source, layout, far))
        if further == far:
            break
        far = further
    program = tuple(_emit(source, layout.labels, far))
    validate(program)
    return program


class _Layout(Struct, frozen=True):
    labels: Mapping[str, int]
    starts: Sequence[int]


def _lay_out(source: Sequence[Source], far: set[tuple[int, str]]) -> _Layout:
    labels: dict[str, int] = {}
    starts = []
    position = 0
    for index, item in enumerate(source):
        starts.append(position)
        if isinstance(item, Label):
            if item.name in labels:
                raise InvalidProgram(f"label {item.name!r} is set twice")
            labels[item.name] = position
        else:
            position += 1 + ((index, "yes") in far) + ((index, "no") in far)
    return _Layout(labels, starts)


def _distance(labels: Mapping[str, int], label: str, after: int) -> int:
    if label not in labels:
        raise InvalidProgram(f"label {label!r} is jumped to and never set")
    distance = labels[label] - after
    if distance < 0:
        raise InvalidProgram(f"label {label!r} is behind the instruction that jumps to it; BPF only jumps forward")
    return distance


def _find_far_jumps(source: Sequence[Source], layout: _Layout, far: set[tuple[int, str]]) -> Iterable[tuple[int, str]]:
    for index, item in enumerate(source):
        if isinstance(item, Branch):
            for side, label in (("yes", item.yes), ("no", item.no)):
                known = (index, side) in far
                if label and not known and _distance(layout.labels, label, layout.starts[index] + 1) > MAX_BRANCH:
                    yield index, side


def _emit(source: Sequence[Source], labels: Mapping[str, int], far: set[tuple[int, str]]) -> Iterable[Instruction]:
    position = 0
    for index, item in enumerate(source):
        match item:
            case Instruction():
                emitted = [item]
            case Jump(label):
                emitted = [Instruction(JMP | JA, k=_distance(labels, label, position + 1))]
            case Branch():
                emitted = _emit_branch(item, labels, position, [side for side in ("yes", "no") if (index, side) in far])
            case Label():
                emitted = []
        yield from emitted
        position += len(emitted)


def _emit_branch(branch: Branch, labels: Mapping[str, int], position: int, far: list[str]) -> list[Instruction]:
    jumps: list[Instruction] = []
    skips = {}
    for side, label in (("yes", branch.yes), ("no", branch.no)):
        if side in far:
            assert label is not None
            skips[side] = len(jumps)
            jumps.append(Instruction(JMP | JA, k=_distance(labels, label, position + len(jumps) + 2)))
        else:
            skips[side] = len(far) if label is None else _distance(labels, label, position + 1)
    return [Instruction(JMP | branch.condition | K, skips["yes"], skips["no"], branch.k), *jumps]


def validate(program: Sequence[Instruction]) -> None:
    """Raise :class:`InvalidProgram` if the kernel would return EINVAL from ``seccomp(SECCOMP_SET_MODE_FILTER)``.

    The checks are those of net/core/filter.c (bpf_check_classic) and kernel/seccomp.c (seccomp_check_filter).
    """
    if not 0 < len(program) <= MAX_INSTRUCTIONS:
        raise InvalidProgram(f"a program has 1 to {MAX_INSTRUCTIONS} instructions, not {len(program)}")
    for position, instruction in enumerate(program):
        if problem := _describe_problem(instruction, len(program) - position - 1):
            raise InvalidProgram(f"instruction {position} ({instruction}): {problem}")
    if program[-1].code not in (RET | K, RET | A):
        raise InvalidProgram("the last instruction must be RET")
    _check_cells(program)


def _describe_problem(instruction: Instruction, behind: int) -> str | None:
    """Describe the error in one instruction that has ``behind`` others behind it."""
    code, k = instruction.code, instruction.k
    if not (0 <= k <= 0xFFFF_FFFF and 0 <= instruction.jt <= MAX_BRANCH and 0 <= instruction.jf <= MAX_BRANCH):
        return "a field doesn't fit"
    if code not in ALLOWED_CODES:
        return "not an instruction that seccomp allows"
    if code == LD | ABS and (k >= DATA_SIZE or k % 4):
        return "loads a word that the system call's data doesn't have"
    if code == ALU | DIV | K and k == 0:
        return "divides by zero"
    if code in (ALU | LSH | K, ALU | RSH | K) and k >= 32:
        return "shifts by 32 bits or more"
    if code in (LD | MEM, LDX | MEM, ST, STX) and k >= MEMORY_CELLS:
        return f"there are {MEMORY_CELLS} memory cells"
    skips = (k,) if code == JMP | JA else (instruction.jt, instruction.jf) if code & 7 == JMP else ()
    return "jumps behind the end" if any(skip >= behind for skip in skips) else None


def _check_cells(program: Sequence[Instruction]) -> None:
    """Check that no memory cell is read that isn't written on every path to the read."""
    all_cells = (1 << MEMORY_CELLS) - 1
    written_on_jump = [all_cells] * len(program)  # the cells that are written on every jump to this instruction
    written = 0  # the cells that are written on the path without a jump
    for position, instruction in enumerate(program):
        written &= written_on_jump[position]
        code = instruction.code
        if code in (ST, STX):
            written |= 1 << instruction.k
        elif code in (LD | MEM, LDX | MEM) and not written & 1 << instruction.k:
            raise InvalidProgram(
                f"instruction {position} reads memory cell {instruction.k}, which may not be written yet"
            )
        elif code & 7 == JMP:
            for skip in (instruction.k,) if code == JMP | JA else (instruction.jt, instruction.jf):
                written_on_jump[position + 1 + skip] &= written
            written = all_cells  # no path without a jump leads past here


def run(program: Sequence[Instruction], data: SyscallData | bytes) -> Outcome:
    """Interpret a valid program for this system call; returns what the kernel would get."""
    words = struct.unpack("<16I", data if isinstance(data, bytes) else data.pack())
    machine = _Machine(words)
    position = steps = 0
    while True:
        instruction = program[position]
        steps += 1
        if instruction.code & 7 == RET:
            return Outcome(machine.a if instruction.code & A else instruction.k, steps)
        if instruction.code & 7 == JMP:
            position += machine.skip(instruction)
        elif not machine.step(instruction):
            return Outcome(0, steps)
        position += 1


class _Machine:
    """The registers and cells."""

    def __init__(self, words: Sequence[int]) -> None:
        self.words = words
        self.a = self.x = 0
        self.cells = [0] * MEMORY_CELLS

    def skip(self, instruction: Instruction) -> int:
        """The number of instructions that a jump skips."""
        if instruction.code == JMP | JA:
            return instruction.k
        other = self.x if instruction.code & X else instruction.k
        return instruction.jt if _CONDITIONS[instruction.code & 0xF0](self.a, other) else instruction.jf

    def step(self, instruction: Instruction) -> bool:
        """Execute an instruction other than jump and return; False if the program ends with 0 (division by zero)."""
        code, k = instruction.code, instruction.k
        match code & 7:
            case 0 | 1:  # LD, LDX
                mode = code & 0xE0
                value = {IMM: k, LEN: DATA_SIZE}.get(mode)
                if value is None:
                    value = self.words[k // 4] if mode == ABS else self.cells[k]
                if code & 7 == LD:
                    self.a = value
                else:
                    self.x = value
            case 2:  # ST
                self.cells[k] = self.a
            case 3:  # STX
                self.cells[k] = self.x
            case 4:  # ALU
                return self._calculate(code & 0xF0, self.x if code & X else k)
            case _:  # MISC
                if code & 0x80:
                    self.a = self.x
                else:
                    self.x = self.a
        return True

    def _calculate(self, operation: int, other: int) -> bool:
        if operation == DIV and other == 0:
            return False
        self.a = (-self.a if operation == NEG else _ARITHMETIC[operation](self.a, other)) & 0xFFFF_FFFF
        return True
