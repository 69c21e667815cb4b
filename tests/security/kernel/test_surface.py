"""Surface: the parts of Linux that no attacker in a sandbox may come near."""

from tests.security.conftest import Attacked


def test_no_agent_reaches_bpf(attacked: Attacked) -> None:
    attacked.stopped("surface.bpf")


def test_no_agent_reaches_io_uring(attacked: Attacked) -> None:
    attacked.stopped("surface.io_uring")


def test_no_agent_reaches_perf_events(attacked: Attacked) -> None:
    attacked.stopped("surface.perf_event_open")


def test_no_agent_reaches_userfaultfd(attacked: Attacked) -> None:
    attacked.stopped("surface.userfaultfd")


def test_no_agent_reaches_keyrings(attacked: Attacked) -> None:
    attacked.stopped("surface.keyctl")


def test_no_agent_traces_its_own_children(attacked: Attacked) -> None:
    attacked.stopped("surface.ptrace_own_child")


def test_no_agent_opens_a_file_system(attacked: Attacked) -> None:
    attacked.stopped("surface.new_mount_api")


def test_no_agent_adds_a_seccomp_listener(attacked: Attacked) -> None:
    attacked.stopped("surface.add_seccomp_listener")


def test_no_call_passes_by_a_32_bit_number(attacked: Attacked) -> None:
    attacked.stopped("surface.int80_32bit_calls")


def test_no_agent_changes_its_personality(attacked: Attacked) -> None:
    attacked.stopped("surface.personality")


def test_a_program_from_memory_gets_no_more_than_the_agent_had(attacked: Attacked) -> None:
    attacked.stopped("surface.memfd_exec")


def test_no_call_passes_by_an_x32_number(attacked: Attacked) -> None:
    attacked.stopped("surface.x32_calls")


def test_no_system_call_passes_that_was_not_reviewed(attacked: Attacked) -> None:
    attacked.stopped("surface.calls_that_came_later")


def test_no_agent_reaches_rare_calls(attacked: Attacked) -> None:
    attacked.stopped("surface.rare_calls")


def test_no_agent_rewrites_what_proc_says_of_it(attacked: Attacked) -> None:
    attacked.stopped("surface.memory_descriptors")


def test_strict_executes_no_memory_file(attacked: Attacked) -> None:
    attacked.stopped_in_strict("strict.memfd_exec")


def test_strict_executes_no_file_that_the_agent_wrote(attacked: Attacked) -> None:
    attacked.stopped_in_strict("strict.written_exec")
