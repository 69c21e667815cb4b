"""The attacks as a whole: how many are stopped, and who decides that."""

import os
from collections.abc import Mapping
from concurrent.futures import Future

from agentos.sandbox.cgroups import discover
from agentos.sandbox.filters import syscall_numbers
from agentos_attacks import harness, verdicts
from agentos_attacks.inside.checks import BY_NAME, COMPARED, FURTHER
from agentos_attacks.inside.frame import NUMBERS
from agentos_attacks.verdicts import Verdict
from tests.security.conftest import Attacked
from tests.security.settings import dump_verdicts, load_verdicts

# Not in a guest, for root: it lacks devices, networks, instructions or kernel features, or its Linux refuses by itself.
NOTHING_TO_FIND = {
    *("file.open_by_handle_at", "file.mknod_host_disk", "file.write_through_own_memory", "proc.setuid_binary"),
    *("proc.zombies_reaped", "proc.stop_pid1", "proc.give_orders_to_pid1", "proc.core_dump"),
    *("proc.command_line_of_pid1", "priv.remount_root_rw", "priv.nested_userns_full_caps", "priv.iopl"),
    *("net.host_loopback_tcp", "net.route_to_metadata_or_internet", "net.see_the_hosts_network", "ipc.message_queue"),
    *("ipc.peer_of_its_own_socket", "surface.perf_event_open", "surface.int80_32bit_calls", "surface.x32_calls"),
    *("surface.calls_that_came_later", "surface.memory_descriptors"),
}


def test_all_but_what_is_accepted_is_blocked(attacked: Attacked) -> None:
    without_groups = attacked.setting == "here" and isinstance(discover.discover_here(), discover.NoCgroups)
    wanted = "63 blocked, 2 accepted" if without_groups else "64 blocked, 1 accepted"

    assert verdicts.count_outcomes(list(attacked.verdicts.values())) == f"{wanted} of 65"


def test_where_there_are_no_walls_the_attacker_gets_through(guests: Mapping[str, "Future[list[Verdict]]"]) -> None:
    found = {one.check: one for one in guests["bare"].result()}

    others = ("dos.", "deputy.", "strict.")
    tried = {name for name in found if not name.startswith(others) and name not in harness.SEPARATE_CHECKS}
    closed = {"file.read_shadow"} if os.geteuid() else set()  # a guest reads the host's files as whoever booted it
    stopped = {name: found[name] for name in tried if found[name].outcome != "escaped"}
    assert stopped.keys() <= NOTHING_TO_FIND | closed, {n: stopped[n] for n in stopped.keys() - NOTHING_TO_FIND}


def test_the_kernel_is_asked_for_the_hosts_files_and_opens_none(attacked: Attacked) -> None:
    assert {attacked.verdicts[f"deputy.{name}"].outcome for name in ("path_tricks", "symlink_race")} == {"blocked"}


def test_there_are_65_attacks_to_compare_by_and_each_name_is_used_once() -> None:
    assert len(COMPARED) == 65
    assert len(BY_NAME) == len(COMPARED) + len(FURTHER)


def test_the_attackers_numbers_are_those_of_linux() -> None:
    known = syscall_numbers.NUMBERS

    assert all(known[machine][name] == number for machine in NUMBERS for name, number in NUMBERS[machine].items())


def test_an_attack_counts_as_blocked_only_where_those_outside_agree() -> None:
    name = "file.write_system_dirs"
    said = {name: ("blocked", "EROFS")}

    alone = {one.check: one for one in verdicts.judge(said, {}, {})}
    denied = {one.check: one for one in verdicts.judge(said, {name: "left behind: /usr/planted"}, {})}

    assert (alone[name].outcome, denied[name].outcome) == ("blocked", "escaped")
    assert alone["file.read_shadow"].outcome == "unclear", "the attacker didn't report it"


def test_what_a_table_says_can_be_read_back() -> None:
    found = verdicts.judge({}, {}, {})

    assert load_verdicts(dump_verdicts(found)) == found
    assert verdicts.format_table(found).count(os.linesep) == len(found) + 3
