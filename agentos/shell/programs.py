"""Programs and builtins that run, or evaluate, what their arguments say."""

import re


def split_names(text: str) -> frozenset[str]:
    return frozenset(text.split())


BUILTINS = split_names("""
    . : [ alias bg bind break builtin caller cd command compgen complete compopt continue declare dirs disown echo
    enable eval exec exit export false fc fg getopts hash help history jobs kill let local logout mapfile popd printf
    pushd pwd read readarray readonly return set shift shopt source suspend test times trap true type typeset ulimit
    umask unalias unset wait
""")
"""Those of bash 5.2 (``compgen -b``)."""

READABLE_BUILTINS = frozenset({"cd", "echo", "printf", "test", "[", "true", "false", "pwd", ":", "exit"})
"""The builtins that a text of simple commands may have."""

SHELLS = split_names("sh bash rbash dash ash ksh mksh zsh fish csh tcsh yash posh elvish nu pwsh")

RUNNERS: dict[str, tuple[str, int] | None] = {
    "env": ("uC", 0),
    "command": ("", 0), "builtin": ("", 0), "exec": ("a", 0), "busybox": ("", 0), "toybox": ("", 0),
    "nice": ("n", 0), "ionice": ("cn", 0), "nohup": ("", 0), "timeout": ("ks", 1), "setsid": ("", 0),
    "stdbuf": ("ioe", 0), "xargs": ("adEInPLs", 0), "chroot": ("", 1), "unshare": ("RwSG", 0),
    "nsenter": ("tSGrw", 0), "strace": ("eopsPEuaIbOSXU", 0), "ltrace": ("eopsuanlxAD", 0), "flock": ("wE", 1),
    "watch": ("nq", 0), "chrt": ("TPD", 1), "taskset": ("", 1), "fakeroot": ("", 0), "catchsegv": ("", 0),
    "unbuffer": ("", 0), "time": ("fo", 0),
    "parallel": None, "script": None, "setarch": None, "systemd-run": None,
}  # fmt: skip
"""Programs that run the command in their arguments: their short options that take a value in a word of its own, and
the number of operands before the command. ``None``: it may begin at any of the first words."""

OPAQUE_RUNNERS = split_names("""
    sudo doas pkexec su runuser gosu su-exec setpriv capsh linux32 linux64 i386 x86_64 prlimit numactl choom cgexec
    bwrap firejail proot faketime eatmydata tini dumb-init run-parts start-stop-daemon entr rlwrap xvfb-run nix-shell
    dbus-run-session
""")
"""The same; the reader does not look for the command in their arguments."""

LONG_FLAGS = split_names("""
    ignore-environment null debug ignore preserve-status foreground verbose no-run-if-empty interactive exit open-tty
    ctty fork wait shared exclusive nonblock nb unlock close no-fork skip-chdir beep color differences errexit chgexit
    no-title precise exec mount uts ipc net pid user cgroup map-root-user kill-child all
""")
LONG_VALUED = split_names("""
    unset chdir adjustment class classdata kill-after signal arg-file delimiter eof replace max-args max-procs max-lines
    max-chars timeout interval root wd target setuid setgid group input output error
""")

FIND_RUNS = re.compile(r"-(exec|execdir|ok|okdir|delete|fprint.*|fls|files0-from)")
RESERVED = split_names("""
    if then elif else fi do done case esac while until for select function { } ! [[ ]] coproc time in
""")
