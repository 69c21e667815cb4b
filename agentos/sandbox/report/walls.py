"""Record which isolation layers are active on a program: read from /proc before its first instruction."""

import errno
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from attrs import evolve
from msgspec import Struct

from agentos.sandbox import steps as s
from agentos.sandbox.files import proc_files
from agentos.sandbox.files.root_files import BLOCK, TERMINALS, WORKSPACE
from agentos.sandbox.filters import seccomp
from agentos.sandbox.host_ids import FIRST_BLOCK
from agentos.sandbox.policy import MAX_TERMINALS
from agentos.sandbox.steps import Step
from agentos_sdk.values import Layer

LAYERS = (
    *("user_ns", "pid_ns", "mount_ns", "net_ns", "ipc_ns", "uts_ns", "cgroup_ns", "root", "own_uid", "capabilities"),
    *("no_new_privs", "seccomp", "landlock", "rlimits", "memory", "pids", "cpu", "disk"),
)
_NAMESPACE_LAYERS = {
    "user_ns": "user",
    "pid_ns": "pid",
    "mount_ns": "mnt",
    "net_ns": "net",
    "ipc_ns": "ipc",
    "uts_ns": "uts",
    "cgroup_ns": "cgroup",
}
_WALLS = LAYERS[: LAYERS.index("rlimits")]
_CAPABILITY_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
_LIMIT_LINES = {  # of /proc/PID/limits
    "NOFILE": "Max open files",
    "FSIZE": "Max file size",
    "NPROC": "Max processes",
    "CORE": "Max core file size",
    "DATA": "Max data size",
    "RTPRIO": "Max realtime priority",
    "NICE": "Max nice priority",
    "MEMLOCK": "Max locked memory",
    "MSGQUEUE": "Max msgqueue size",
    "SIGPENDING": "Max pending signals",
}


class Observed(Struct, frozen=True):
    """The /proc state of a confined program that waits for go."""

    status: Mapping[str, str]  # /proc/PID/status by field
    limits: Mapping[str, tuple[str, str]]  # /proc/PID/limits by its first column: soft, hard
    namespaces: Mapping[str, int]  # the program's, by inode
    ours: Mapping[str, int]


def read_observed(pid: int, namespaces: Mapping[str, int]) -> Observed:
    """Read the state of this pid; ``namespaces`` are its inodes by name."""
    lines = proc_files.read_file(f"/proc/{pid}/status").splitlines()
    status = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    rows = proc_files.read_file(f"/proc/{pid}/limits").splitlines()[1:]
    fields = {row[:26].strip(): row[26:].split() for row in rows}
    limits = {name: (found[0], found[1]) for name, found in fields.items()}
    return Observed(status, limits, dict(namespaces), _own_namespaces())


@functools.cache
def _own_namespaces() -> Mapping[str, int]:
    places = ((name, f"/proc/self/ns/{name}") for name in _NAMESPACE_LAYERS.values())
    # By name: a process that isn't dumpable, such as the kernel, may enter its own ns directory but not list it.
    return {name: os.stat(path).st_ino for name, path in places if os.path.exists(path)}


def isolation_layers(plan: Sequence[Step], observed: Observed) -> dict[str, Layer]:
    """Return the record of a spawn. The caller adds the limits that it has set by cgroup."""
    return dict(_layers(plan, observed))


def _layers(plan: Sequence[Step], observed: Observed) -> Iterator[tuple[str, Layer]]:
    first = plan[0]
    if isinstance(first, s.Clone) and not first.flags:
        yield from ((name, _unasked_layer(name, observed)) for name in _WALLS)
        yield "rlimits", _rlimits_layer(plan, observed)
        return
    for name, short in _NAMESPACE_LAYERS.items():
        yield name, _namespace_layer(short, observed, first)
    root = f"mnt:[{observed.namespaces.get('mnt')}]"
    if isinstance(first, s.Join):
        yield "root", _step_layer(plan, s.Join, "setns", root)
    else:
        yield "root", _step_layer(plan, s.SwitchRoot, "pivot_root onto a tmpfs", root)
    yield "own_uid", _own_uid_layer(observed)
    yield "capabilities", _capabilities_layer(plan, observed)
    yield "no_new_privs", _status_layer(observed, "NoNewPrivs", "1", "prctl")
    yield "seccomp", _seccomp_layer(plan, observed)
    walls = any(isinstance(step, s.Landlock) for step in plan)
    yield (
        "landlock",
        Layer(
            True,
            walls,
            "landlock_restrict_self" if walls else "",
            "the call succeeded; no file in /proc shows it" if walls else "",
            "" if walls else "this kernel has no Landlock, or it is switched off",
        ),
    )
    yield "rlimits", _rlimits_layer(plan, observed)


def _unasked_layer(name: str, observed: Observed) -> Layer:
    short = _NAMESPACE_LAYERS.get(name)
    seen = f"{short}:[{observed.namespaces.get(short)}], ours is {short}:[{observed.ours.get(short)}]" if short else ""
    return Layer(False, False, "", seen, "the agent's isolation is none")


def _namespace_layer(short: str, observed: Observed, first: Step) -> Layer:
    inode, ours = observed.namespaces.get(short), observed.ours.get(short)
    active = inode is not None and inode != ours
    host_network = short == "net" and not (first.flags & 0x40000000 if isinstance(first, s.Clone) else active)
    why = "network: true gives it the host's" if host_network else f"no {short} namespace of its own"
    evidence = f"{short}:[{inode}], ours is {short}:[{ours}]"
    made = "setns" if isinstance(first, s.Join) and short not in ("pid", "mnt") else "clone"
    how = "unshare" if made == "clone" and short in ("cgroup", "mnt") else made
    return Layer(not host_network, active, how, evidence, "" if active else why)


def _step_layer(plan: Sequence[Step], kind: type, mechanism: str, evidence: str) -> Layer:
    """A layer with a step that ends the process on failure. Evidence: the process waits after that step."""
    done = any(isinstance(step, kind) for step in plan)
    return Layer(True, done, mechanism if done else "", evidence if done else "", "" if done else "not in the plan")


def _own_uid_layer(observed: Observed) -> Layer:
    uids = observed.status.get("Uid", "").split()
    active = bool(uids) and len(set(uids)) == 1 and uids[0] not in ("0", str(os.geteuid()))
    reason = "" if active else "without root it has the kernel's own uid on the host"
    return Layer(os.geteuid() == 0, active, "uid_map" if active else "", f"Uid {' '.join(uids)}", reason)


def _capabilities_layer(plan: Sequence[Step], observed: Observed) -> Layer:
    """Empty sets, or with root inside exactly its own in three of them."""
    keep = next((step.keep for step in plan if isinstance(step, s.DropCapabilities)), 0)
    sets = {name: observed.status.get(name, "?") for name in _CAPABILITY_SETS}
    asked = {name: f"{keep if name in ('CapPrm', 'CapEff', 'CapBnd') else 0:016x}" for name in sets}
    evidence = " ".join(f"{name}={value}" for name, value in sets.items())
    wrong = ", ".join(name for name in sets if sets[name] != asked[name])
    why = f"not {'as asked' if keep else 'empty'}: {wrong}" if wrong else ""
    return Layer(True, not wrong, "capset, bounding set, securebits", evidence, why)


def user_layer(program: int) -> Layer:
    """Whether this program's ids are a block of its own, or without root one, and no others, as its maps say."""
    uid = os.geteuid()
    count, how = (str(BLOCK), "uid_map, a block of ids") if uid == 0 else ("1", "uid_map, one id; others are pretended")
    maps = [proc_files.read_file(f"/proc/{program}/{name}").split() for name in ("uid_map", "gid_map")]
    evidence = "; ".join(" ".join(found) for found in maps)
    active = all(found[::2] == ["0", count] for found in maps) and (uid != 0 or int(maps[0][1]) >= FIRST_BLOCK)
    return Layer(True, active, how if active else "", evidence, "" if active else "it has other ids, too")


def overlay_layer(program: int) -> Layer:
    """Whether this program's workspace is an overlay, as its mountinfo says; that of its layers' names is neutral."""
    _, evidence = _read_mount(program, WORKSPACE)
    active = evidence.startswith("overlay ") and "userxattr" in evidence
    return Layer(True, active, "overlayfs" if active else "", evidence, "" if active else "it is no overlay")


def terminals_layer(program: int) -> Layer:
    """Whether this program has a devpts of its own with a bound, as its mountinfo says."""
    _, evidence = _read_mount(program, TERMINALS)
    active = evidence.startswith("devpts ") and f"max={MAX_TERMINALS}" in evidence
    return Layer(MAX_TERMINALS, active, "devpts" if active else "", evidence, "" if active else "it has no bound")


def image_layer(program: int, *, read_only: bool) -> Layer:
    """Whether this program's root is an overlay of an image, without set-id bits, devices and, if asked, writing."""
    options, evidence = _read_mount(program, "/")
    missing = {"nosuid", "nodev", *(["ro"] if read_only else [])} - options
    active = evidence.startswith("overlay image ") and "userxattr" in evidence and not missing
    reason = "" if active else f"its root isn't the image's: {evidence}, without {', '.join(sorted(missing)) or 'more'}"
    return Layer(True, active, "overlayfs" if active else "", f"{','.join(sorted(options))} {evidence}", reason)


def _read_mount(program: int, place: str) -> tuple[AbstractSet[str], str]:
    """The options of the mount on top at a place of this program's, and its kind, source and file system's options."""
    lines = [line.split() for line in proc_files.read_file(f"/proc/{program}/mountinfo").splitlines()]
    mounts = [line for line in lines if line[4] == place]
    last = mounts[-1] if mounts else []
    return ({*last[5].split(",")}, " ".join(last[last.index("-") + 1 :])) if "-" in last else (set(), "no mount")


def _status_layer(observed: Observed, name: str, expected: str, mechanism: str) -> Layer:
    value = observed.status.get(name, "absent")
    active = value == expected
    return Layer(True, active, mechanism, f"{name}: {value}", "" if active else f"{name} is {value}, not {expected}")


def _seccomp_layer(plan: Sequence[Step], observed: Observed) -> Layer:
    """The seccomp layer; says which mechanism keeps memfds from being executed, if one does."""
    layer = _status_layer(observed, "Seccomp", "2", "BPF filter")
    filters = [step.program for step in plan if isinstance(step, s.Seccomp)]
    if not layer.active or not filters:
        return layer
    if any(isinstance(step, s.ForbidExecutableMemfds) for step in plan):
        read = "vm.memfd_noexec: 2, read back in its PID namespace"
        return evolve(layer, mechanism="BPF filter + vm.memfd_noexec", evidence=f"{layer.evidence}; {read}")
    refusal = seccomp.memfd_refusal(bytes.fromhex(filters[-1]), os.uname().machine)
    if refusal is None:
        return layer
    answer = f"memfd_create without MFD_NOEXEC_SEAL: {errno.errorcode[refusal]}"
    return evolve(layer, evidence=f"{layer.evidence}; {answer}")


def _rlimits_layer(plan: Sequence[Step], observed: Observed) -> Layer:
    asked = {name: value for step in plan if isinstance(step, s.SetLimits) for name, value in step.limits}
    read = {name: observed.limits.get(_LIMIT_LINES[name], ("?", "?")) for name in asked}
    wrong = [name for name, value in asked.items() if read[name] != (str(value), str(value))]
    evidence = " ".join(f"{name}={soft}" for name, (soft, _) in read.items())
    return Layer(True, not wrong, "setrlimit", evidence, f"not as asked: {', '.join(wrong)}" if wrong else "")
