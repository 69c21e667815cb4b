"""Namespaces and privileges: what an attacker in a sandbox must not share, keep or get back."""

from tests.security.conftest import Attacked


def test_no_namespace_is_shared_with_the_host(attacked: Attacked) -> None:
    attacked.stopped("ns.shared_with_host")


def test_no_capability_is_left_in_any_set(attacked: Attacked) -> None:
    attacked.stopped("priv.host_capabilities")


def test_no_new_privileges_can_be_had(attacked: Attacked) -> None:
    attacked.stopped("priv.no_new_privs")


def test_no_agent_runs_without_a_filter(attacked: Attacked) -> None:
    attacked.stopped("priv.seccomp_filter")


def test_nothing_can_be_mounted(attacked: Attacked) -> None:
    attacked.stopped("priv.mount_tmpfs")


def test_what_is_read_only_cannot_be_made_writable(attacked: Attacked) -> None:
    attacked.stopped("priv.remount_root_rw")


def test_the_root_cannot_be_changed(attacked: Attacked) -> None:
    attacked.stopped("priv.chroot")


def test_no_user_namespace_can_be_made_inside(attacked: Attacked) -> None:
    attacked.stopped("priv.nested_userns")


def test_no_user_namespace_can_be_made_by_clone3(attacked: Attacked) -> None:
    attacked.stopped("priv.nested_userns_clone3")


def test_no_namespace_opens_mounts_and_netfilter(attacked: Attacked) -> None:
    attacked.stopped("priv.nested_userns_full_caps")


def test_the_machine_cannot_be_reconfigured(attacked: Attacked) -> None:
    attacked.stopped("priv.module_kexec_swap_reboot")


def test_no_port_of_the_machine_can_be_reached(attacked: Attacked) -> None:
    attacked.stopped("priv.iopl")


def test_the_kernels_log_cannot_be_read(attacked: Attacked) -> None:
    attacked.stopped("priv.syslog_dmesg")


def test_no_kind_of_namespace_can_be_made(attacked: Attacked) -> None:
    attacked.stopped("ns.each_namespace_alone")


def test_no_namespace_can_be_joined(attacked: Attacked) -> None:
    attacked.stopped("ns.join_by_descriptor")


def test_the_hosts_name_is_neither_seen_nor_changed(attacked: Attacked) -> None:
    attacked.stopped("ns.hostname")


def test_the_place_among_the_hosts_groups_is_not_seen(attacked: Attacked) -> None:
    attacked.stopped("ns.cgroup_path")


def test_no_wall_can_be_loosened_from_inside(attacked: Attacked) -> None:
    attacked.stopped("priv.loosen_walls")


def test_no_newer_way_to_mount_is_open(attacked: Attacked) -> None:
    attacked.stopped("priv.mount_interfaces")


def test_no_refused_call_passes_by_a_longer_number(attacked: Attacked) -> None:
    attacked.stopped("priv.numbers_with_high_bits")
