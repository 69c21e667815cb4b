"""Which files READ and WRITE take: regular files of normal file systems, and for some callers without hard links."""

import contextlib
import os
import stat

from agentos.sandbox.files import openat2
from agentos_sdk.errors import BadRequest, PermissionDenied

MAX_CHECKED_FILES = 100_000  # below a directory that an agent may be shown as a whole
KERNEL_FILE_SYSTEMS = {  # file systems that are interfaces to Linux; their files include our own environment
    0x9FA0: "proc",
    0x62656572: "sysfs",
    0x27E0EB: "cgroup",
    0x63677270: "cgroup2",
    0x64626720: "debugfs",
    0x74726163: "tracefs",
    0x73636673: "securityfs",
    0x62656570: "configfs",
    0xCAFE4A11: "bpf",
    0x6165676C: "pstore",
    0xDE5E81E4: "efivarfs",
    0xF97CFF8C: "selinuxfs",
    0x43415D53: "smackfs",
    0x5A3C69F0: "apparmorfs",
    0x42494E4D: "binfmt_misc",
    0x65735543: "fusectl",
    0x6E736673: "nsfs",
    0x19800202: "mqueue",
}
FILE_TYPES = {
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def check_regular_file(fd: int, given: str, single_link: bool = False) -> os.stat_result:
    """Raise unless this is a regular file in a normal file system; with ``single_link``, one without hard links."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise BadRequest(f"{given}: expected a file, and this is {describe_type(status)}")
    check_file_system(fd, given)
    if single_link:
        check_single_link(status, given)
    return status


def reopen(fd: int, flags: int) -> int:
    """Open the file of an O_PATH descriptor, to be checked first: opening a FIFO or a device has side effects."""
    return os.open(f"/proc/self/fd/{fd}", flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)


def describe_type(status: os.stat_result) -> str:
    return FILE_TYPES.get(stat.S_IFMT(status.st_mode), "something else")


def check_file_system(fd: int, given: str) -> None:
    """Refuse files of file systems that are interfaces to Linux, such as proc."""
    if (name := KERNEL_FILE_SYSTEMS.get(openat2.kind_of_file_system(fd))) is not None:
        raise PermissionDenied(f"{given}: lies in {name}, which can't be read or written through the kernel")


def check_single_link(status: os.stat_result, asked: str) -> None:
    """Refuse a file with several hard links, for callers that may not read all of the host's files."""
    if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
        raise PermissionDenied(
            f"{asked}: has {status.st_nlink} names (hard links), and another one may lie where you may not look"
        )


def check_single_links(directory: str, field: str) -> None:
    """The same for every file below a directory, of at most ``MAX_CHECKED_FILES``. No symlink is followed."""
    count = 0
    for top, _, names in os.walk(directory, onerror=_raise):
        count += len(names)
        if count > MAX_CHECKED_FILES:
            raise PermissionDenied(
                f"{field}: {directory} has more than {MAX_CHECKED_FILES} files to look at for hard links"
            )
        for name in names:
            path = f"{top}/{name}"
            with contextlib.suppress(FileNotFoundError):
                check_single_link(os.lstat(path), f"{field}: {path}")


def _raise(error: OSError) -> None:
    raise error
