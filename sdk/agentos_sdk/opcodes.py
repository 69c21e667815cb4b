"""Numbers and names of all system calls."""

from enum import IntEnum


class Op(IntEnum):
    """The opcodes of the protocol; a kernel answers ``unknown_call`` to those it doesn't serve."""

    NOOP = 0x00
    THINK = 0x01
    READ = 0x02
    WRITE = 0x03
    EXEC = 0x04
    SPAWN = 0x10
    KILL = 0x11
    LIST = 0x12
    WAIT = 0x13
    PAUSE = 0x14
    RESUME = 0x15
    TREE = 0x16
    LOGS = 0x17
    INSPECT = 0x18
    RELOAD = 0x19
    START = 0x1A
    STOP = 0x1B
    RESTART = 0x1C
    SHUTDOWN = 0x1D
    STATUS = 0x1E
    USAGE = 0x1F
    SEND = 0x20
    RECV = 0x21
    BROADCAST = 0x22
    REGISTER = 0x23
    ACK = 0x24
    MAIL = 0x25
    STORE = 0x30
    FETCH = 0x31
    DELETE = 0x32
    KEYS = 0x33
    EXPORT = 0x34
    IMPORT = 0x35
    SNAPSHOT = 0x36
    ROLLBACK = 0x37
    FORK = 0x38
    DIFF = 0x39
    APPLY = 0x3A
    SNAPSHOTS = 0x3B
    IMAGES = 0x3C
    UNDO = 0x3D
    GET_PERMS = 0x40
    SET_PERMS = 0x41
    APPROVALS = 0x42
    DECIDE = 0x43
    EXPLAIN = 0x44
    HTTP = 0x50
    NOW = 0x51
    SLEEP = 0x52
    RANDOM = 0x53
    SUBSCRIBE = 0x60
    UNSUBSCRIBE = 0x61
    POLL_EVENTS = 0x62
    EMIT = 0x63
    RECORD_START = 0x70
    RECORD_STOP = 0x71
    RECORD_STATUS = 0x72
    REPLAY_START = 0x73
    REPLAY_STATUS = 0x74
    REPLAY_STOP = 0x75
    GET_AUDIT_LOG = 0x76
    SET_AUDIT_CONFIG = 0x77
    GET_CONTENTS = 0x78
    ASYNC_POLL = 0x80
    TOOLS = 0x90
    TOOL_CALL = 0x91
    WORLD_CREATE = 0xA0
    WORLD_DESTROY = 0xA1
    WORLD_LIST = 0xA2
    WORLD_JOIN = 0xA3
    WORLD_LEAVE = 0xA4
    WORLD_EVENT = 0xA5
    WORLD_STATE = 0xA6
    WORLD_SNAPSHOT = 0xA7
    WORLD_RESTORE = 0xA8
    CLUSTER_JOIN = 0xB0
    CLUSTER_LEAVE = 0xB1
    CLUSTER_STATUS = 0xB2
    CLUSTER_AGENTS = 0xB3
    CLUSTER_CONFIG = 0xB4
    METRICS_SYSTEM = 0xC0
    METRICS_AGENT = 0xC1
    METRICS_ALL_AGENTS = 0xC2
    METRICS_CGROUP = 0xC3
    LLM_REPORT = 0xF0
    CHUNK = 0xF1
    CANCEL = 0xFD
    HELLO = 0xFE
    EXIT = 0xFF


SyscallOp = Op
"""The name in the original SDK."""


def op_name(number: int) -> str:
    """``SPAWN`` for 0x10; ``0x99`` for a number without a call."""
    try:
        return Op(number).name
    except ValueError:
        return f"0x{number:02X}"
