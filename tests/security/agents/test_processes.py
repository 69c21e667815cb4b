"""Other processes: what an attacker in a sandbox must not see, hit, take over or outlive."""

from tests.security.conftest import Attacked


def test_an_agent_cannot_see_other_programs(attacked: Attacked) -> None:
    attacked.stopped("proc.see_other_processes")


def test_no_environment_has_a_secret_to_steal(attacked: Attacked) -> None:
    attacked.stopped("proc.steal_environment")


def test_no_program_of_the_hosts_can_be_signalled(attacked: Attacked) -> None:
    attacked.stopped("proc.signal_host_pid")


def test_no_program_of_the_hosts_can_be_traced(attacked: Attacked) -> None:
    attacked.stopped("proc.ptrace_victim")


def test_pid_1_cannot_be_looked_into(attacked: Attacked) -> None:
    attacked.stopped("proc.read_memory_of_pid1_or_parent")


def test_no_descriptor_of_pid_1_can_be_stolen(attacked: Attacked) -> None:
    attacked.stopped("proc.pidfd_getfd_parent")


def test_a_setuid_program_gives_no_process_another_identity(attacked: Attacked) -> None:
    attacked.stopped("proc.setuid_binary")


def test_no_daemon_outlives_its_sandbox(attacked: Attacked) -> None:
    attacked.stopped("proc.daemon_outlives_sandbox")


def test_orphans_do_not_pile_up_as_zombies(attacked: Attacked) -> None:
    attacked.stopped("proc.zombies_reaped")


def test_an_agent_cannot_raise_its_priority(attacked: Attacked) -> None:
    attacked.stopped("proc.realtime_priority")


def test_nothing_is_typed_into_the_users_terminal(attacked: Attacked) -> None:
    attacked.stopped("proc.terminal_injection")


def test_no_request_passes_by_bits_that_linux_ignores(attacked: Attacked) -> None:
    attacked.stopped("proc.requests_with_high_bits")


def test_no_system_call_reaches_into_pid_1(attacked: Attacked) -> None:
    attacked.stopped("proc.memory_of_pid1_by_call")


def test_pid_1_cannot_be_stopped_by_forged_signals(attacked: Attacked) -> None:
    attacked.stopped("proc.stop_pid1")


def test_pid_1_takes_no_orders_from_inside(attacked: Attacked) -> None:
    attacked.stopped("proc.give_orders_to_pid1")


def test_a_crash_leaves_no_core_file(attacked: Attacked) -> None:
    attacked.stopped("proc.core_dump")


def test_an_agent_cannot_raise_its_own_limits(attacked: Attacked) -> None:
    attacked.stopped("proc.raise_own_limits")


def test_an_agent_cannot_lock_the_hosts_memory(attacked: Attacked) -> None:
    attacked.stopped("proc.lock_memory")


def test_the_command_line_of_pid_1_tells_nothing_of_the_host(attacked: Attacked) -> None:
    attacked.stopped("proc.command_line_of_pid1")


def test_killing_everything_kills_nothing_outside(attacked: Attacked) -> None:
    attacked.stopped("proc.kill_everything")
