"""The commands that the default denials refuse: they destroy a machine, or give a process more rights.

A command is known by its base name: ``/bin/rm``, ``\\rm`` and ``busybox rm`` are ``rm``. The commands that the reader
finds behind ``env`` or in ``sh -c`` are judged as well. What a program does by its own files or by a text in another
language is not known here: the jail is the wall.

Roots are ``/`` and what lies directly in it (but for /tmp, /workspace and /agent), what holds the system one level
below (/usr/lib, /var/lib, ...), each user's home, ``.``, ``..`` and ``*``, since a ``cd`` before them may have led to
any directory, though not in a jail.
"""

import os.path
import re
from collections.abc import Callable, Sequence
from itertools import islice

from .reading import Command, Opaque, Reading, Word

Check = Callable[[str, Sequence[Word]], str | None]

NOT_ROOTS = frozenset({"/workspace", "/agent", "/tmp"})
INNER_ROOTS = re.compile(
    r"/usr/(local|bin|sbin|lib\w*|share|include|libexec)|/var/(lib|log|spool|mail|www|cache)|/home/[^/]+"
)
HOME = re.compile(r"(~[^/]*|\$HOME|\$\{HOME\}|\$PWD|\$\{PWD\}|\$OLDPWD|\$\{OLDPWD\})(/+(\.{1,2}/*|\*|\.\*|\{.*\})?)*")
CURRENT_DIRECTORY = re.compile(r"(\.{1,2}/+)*(\.{1,2}|\*|\.\*|\.\[!?\^?\.\]\*)?/*(\*)?")
BLOCK_DEVICE = re.compile(
    r"/dev/(sd|hd|vd|xvd|nvme|mmcblk|loop|dm-|md|sr|nbd|zd|ram|pmem|mtd|disk/|mapper/|block/|(mem|kmem|port)\Z|[*?\[])"
)
KERNEL_FILE = re.compile(r"/proc/(sys/|sysrq-trigger|[^/]*/(mem|oom_\w+)\Z)|/sys/|/boot/")
DEFINITION = re.compile(r"\bfunction[ \t]+([^\s(){}]{1,64})(?:[ \t]*\([ \t]*\))?|\([ \t]*\)")
MAX_FUNCTIONS = 200  # definitions searched for a fork bomb, which bounds the time; the jail's pids limit holds anyway
POWER_COMMANDS = frozenset({
    "poweroff", "reboot", "halt", "kexec", "rescue", "emergency", "suspend", "hibernate", "hybrid-sleep", "exit",
    "soft-reboot", "suspend-then-hibernate", "isolate", "default",
})  # fmt: skip
DOWNLOADERS = frozenset({"curl", "wget", "fetch", "lynx", "aria2c"})
INTERPRETERS = re.compile(
    r"(ba|da|z|k|mk|fi|a|c|tc)?sh|python[0-9.]*|perl[0-9.]*|ruby[0-9.]*|node|php[0-9.]*|source|\.|eval"
)
DOWNLOAD_SUBSTITUTION = re.compile(r"(?:[$<]\(|`)\s*(?:curl|wget)\b")

ALWAYS_DENIED = {
    name: what
    for names, what in {
        "mkfs mke2fs mkswap wipefs blkdiscard fdisk sfdisk cfdisk gdisk sgdisk parted hdparm badblocks lvremove "
        "vgremove pvremove pvcreate mdadm cryptsetup": "formatting or partitioning a disk",
        "sudo sudoedit visudo doas su pkexec runuser sg newgrp setpriv capsh setcap": "becoming another user",
        "shutdown reboot halt poweroff kexec pm-suspend pm-hibernate": "stopping the machine",
        "insmod modprobe rmmod kmod": "changing the kernel's modules",
        "mount umount swapon swapoff losetup pivot_root": "changing what is mounted",
        "useradd userdel usermod adduser deluser groupadd groupdel groupmod passwd chpasswd chsh gpasswd vipw": (
            "changing users"
        ),
        "killall5": "killing every process",
        "setenforce aa-teardown aa-disable": "switching protections off",
    }.items()
    for name in names.split()
}


def find_danger(command: Command, in_jail: bool = False) -> str | None:
    """What a simple command would destroy or take, in words; ``None`` where no default denial is about it.

    ``in_jail``: its working directory is its jail's, so that ``.`` and ``*`` are no roots.
    """
    name = command.name
    if name in ALWAYS_DENIED or name.startswith("mkfs."):
        return f"{ALWAYS_DENIED.get(name, ALWAYS_DENIED['mkfs'])} ({name})"
    if INTERPRETERS.fullmatch(name) and any(DOWNLOAD_SUBSTITUTION.search(word.source) for word in command.words[1:]):
        return "running what comes from the network"
    words = [word for word in command.words[1:] if not (in_jail and is_current_directory(path_of(word)))]
    return CHECKS[name](name, words) if name in CHECKS else None


def find_target_danger(word: Word) -> str | None:
    """The same, of a file that is written to."""
    path = path_of(word)
    if BLOCK_DEVICE.match(path):
        return f"writing to a device ({word.source})"
    if KERNEL_FILE.match(path):
        return f"changing the running kernel ({word.source})"
    return None


def find_combined_danger(reading: Reading) -> str | None:
    """The same, of what only several commands together do."""
    bomb = find_fork_bomb(reading.code) if isinstance(reading, Opaque) else None
    return bomb or ("running what comes from the network" if any(map(runs_download, reading.commands)) else None)


def runs_download(command: Command) -> bool:
    """Whether it is an interpreter that reads its program from a command that gets it from the network."""
    reads = command.input in DOWNLOADERS and INTERPRETERS.fullmatch(command.name) is not None
    other = command.name.startswith("python") and {"-c", "-m"} & {word.text for word in command.words}
    return reads and not other


def find_fork_bomb(code: str) -> str | None:
    """A function that starts itself in the background."""
    for found in islice(DEFINITION.finditer(code), MAX_FUNCTIONS):
        name = found[1] or code[max(0, found.start() - 64) : found.start()].rpartition(";")[2].split()[-1:]
        own = re.escape(name if isinstance(name, str) else "".join(name))
        body = first_group(code[found.end() : found.end() + 2000])
        if own and re.search(rf"[\s|&;({{]{own}(?:[ \t]*\|&?[ \t]*{own})*[ \t]*&(?![&>])", body):
            return f"a fork bomb (the function {own} starts itself)"
    return None


def first_group(text: str) -> str:
    """Up to where the first brace or parenthesis is closed; quotes are not looked at."""
    depth = 0
    for found in re.finditer(r"[(){}]", text):
        depth += 1 if found[0] in "({" else -1
        if depth <= 0:
            return text[: found.end()]
    return text


def path_of(word: Word) -> str:
    """A word's path: its text if that is known, else its source without quotes."""
    path = word.source.replace('"', "").replace("'", "") if word.text is None else word.text
    return re.sub(r"/+", "/", path)


def is_current_directory(path: str) -> bool:
    return path != "" and not path.startswith("/") and CURRENT_DIRECTORY.fullmatch(path) is not None


def is_root(word: Word) -> bool:
    path = path_of(word)
    if word.text is None and HOME.fullmatch(path):
        return True
    if not path.startswith("/"):
        return is_current_directory(path)
    path = re.sub(r"/(\*|\.\*|\{\*,\.\*\})?$", "", path) if path != "/" else path
    path = os.path.normpath("/" + path.lstrip("/"))
    return path not in NOT_ROOTS and (path.count("/") == 1 or INNER_ROOTS.fullmatch(path) is not None)


def split_options(words: Sequence[Word]) -> tuple[list[str], list[Word]]:
    """Options and operands, as GNU's programs take them: in any order, up to ``--``."""
    options, operands = list[str](), list[Word]()
    for at, word in enumerate(words):
        if word.text == "--":
            return options, [*operands, *words[at + 1 :]]
        if word.text is not None and word.text.startswith("-") and word.text != "-":
            options.append(word.text)
        else:
            operands.append(word)
    return options, operands


def is_recursive(options: Sequence[str], operands: Sequence[Word]) -> bool:
    """Also where an option may hide in a word that isn't known."""
    spelled = any(re.fullmatch(r"-[^-]*[rR].*|--r[a-z]*", option) for option in options)
    return spelled or any(word.text is None and re.match(r"[\"']?[$`]", word.source) for word in operands)


def check_rm(name: str, words: Sequence[Word]) -> str | None:
    options, operands = split_options(words)
    if any(re.match(r"--no", option) for option in options):
        return "rm --no-preserve-root"
    root = next((word for word in operands if is_root(word)), None)
    if root is not None and is_recursive(options, operands):
        return f"removing all of {root.source}"
    return None


def check_chmod(name: str, words: Sequence[Word]) -> str | None:
    """chmod, chown, chgrp of a whole root; set-user-ID programs."""
    options, operands = split_options(words)
    root = next((word for word in operands[1:] if is_root(word)), None)
    if root is not None and is_recursive(options, operands):
        return f"{name} of all of {root.source}"
    modes = [word.text or "" for word in operands[:1]]
    if name == "chmod" and any(re.fullmatch(r"0*[2-7][0-7]{3}|.*[+=][rwxXt]*s.*", mode) for mode in modes):
        return f"a program that runs as its owner (chmod {modes[0]})"
    return None


def check_mv(name: str, words: Sequence[Word]) -> str | None:
    root = next(
        (word for word in split_options(words)[1][:-1] if is_root(word) and path_of(word).startswith("/")), None
    )
    return f"moving {root.source} away" if root is not None else check_cp(name, words)


def check_cp(name: str, words: Sequence[Word]) -> str | None:
    """Programs that write to their last operand."""
    return next((found for word in split_options(words)[1][-1:] if (found := find_target_danger(word))), None)


def check_tee(name: str, words: Sequence[Word]) -> str | None:
    return next((found for word in split_options(words)[1] if (found := find_target_danger(word))), None)


def check_dd(name: str, words: Sequence[Word]) -> str | None:
    outputs = [Word(path_of(word)[3:], word.source) for word in words if path_of(word).startswith("of=")]
    return next((found for word in outputs if (found := find_target_danger(word))), None)


def check_find(name: str, words: Sequence[Word]) -> str | None:
    """Its roots stand first."""
    texts = [word.text for word in words]
    roots = [word for word in words if is_root(word) and path_of(word).startswith(("/", "~", "$"))]
    removes = "-delete" in texts or any(text in ("rm", "/bin/rm", "/usr/bin/rm", "shred") for text in texts)
    narrowed = {"-name", "-iname", "-path", "-regex", "-wholename", "-empty"} & set(texts)
    return f"removing all of {roots[0].source}" if roots and removes and not narrowed else None


def check_kill(name: str, words: Sequence[Word]) -> str | None:
    texts = [word.text for word in words]
    if "-1" in texts[1:]:
        return "killing every process"
    return "killing the first process" if "1" in texts and "-l" not in texts else None


def check_init(name: str, words: Sequence[Word]) -> str | None:
    return "stopping the machine" if any((word.text or "") in ("0", "1", "6", "s", "S") for word in words) else None


def check_systemctl(name: str, words: Sequence[Word]) -> str | None:
    found = next((word.text for word in words if word.text in POWER_COMMANDS), None)
    return f"stopping the machine ({name} {found})" if found else None


def check_firewall(name: str, words: Sequence[Word]) -> str | None:
    options = {"-F", "-X", "-P", "-Z", "--flush", "--delete-chain", "--policy", "flush", "disable", "reset", "delete"}
    return "switching the firewall off" if any(word.text in options for word in words) else None


def check_crontab(name: str, words: Sequence[Word]) -> str | None:
    return None if [word.text for word in words] == ["-l"] else "changing what runs by itself (crontab)"


def check_history(name: str, words: Sequence[Word]) -> str | None:
    erases = any(re.match(r"-[a-z]*[cdw]", word.text or "") for word in words)
    return "erasing the shell's history" if erases else None


def check_sysctl(name: str, words: Sequence[Word]) -> str | None:
    sets = any(
        word.text is None or word.text.startswith(("-w", "-p", "--w", "--l", "--s")) or "=" in word.text
        for word in words
    )
    return "changing the running kernel (sysctl)" if sets else None


CHECKS: dict[str, Check] = {
    "rm": check_rm,
    "chmod": check_chmod,
    "chown": check_chmod,
    "chgrp": check_chmod,
    "mv": check_mv,
    "cp": check_cp,
    "install": check_cp,
    "tee": check_tee,
    "shred": check_tee,
    "truncate": check_tee,
    "dd": check_dd,
    "find": check_find,
    "kill": check_kill,
    "init": check_init,
    "telinit": check_init,
    "systemctl": check_systemctl,
    "loginctl": check_systemctl,
    "iptables": check_firewall,
    "ip6tables": check_firewall,
    "nft": check_firewall,
    "ufw": check_firewall,
    "crontab": check_crontab,
    "history": check_history,
    "sysctl": check_sysctl,
}
