"""Files of the host's: what an attacker in a sandbox must not read, write or leave behind."""

from tests.security.conftest import Attacked


def test_an_agent_cannot_read_the_hosts_shadow_file(attacked: Attacked) -> None:
    attacked.stopped("file.read_shadow")


def test_an_agent_cannot_read_the_users_ssh_key(attacked: Attacked) -> None:
    attacked.stopped("file.read_ssh_key")


def test_an_agent_cannot_write_beside_its_workspace(attacked: Attacked) -> None:
    attacked.stopped("file.write_outside_workspace")


def test_an_agent_cannot_write_to_the_systems_directories(attacked: Attacked) -> None:
    attacked.stopped("file.write_system_dirs")


def test_an_agent_cannot_plant_code_that_the_kernel_imports(attacked: Attacked) -> None:
    attacked.stopped("file.plant_code_for_the_kernel")


def test_an_agent_leaves_no_hook_for_tools_of_the_hosts(attacked: Attacked) -> None:
    attacked.stopped("file.persistence_in_workspace")


def test_no_link_in_proc_leads_to_the_hosts_files(attacked: Attacked) -> None:
    attacked.stopped("file.proc_root_links")


def test_no_handle_opens_a_file_of_the_hosts(attacked: Attacked) -> None:
    attacked.stopped("file.open_by_handle_at")


def test_the_hosts_disk_cannot_be_read_through_a_node(attacked: Attacked) -> None:
    attacked.stopped("file.mknod_host_disk")


def test_no_dangerous_device_can_be_opened(attacked: Attacked) -> None:
    attacked.stopped("file.dangerous_devices")


def test_no_descriptor_of_the_hosts_is_inherited(attacked: Attacked) -> None:
    attacked.stopped("file.inherited_fds")


def test_no_control_group_can_be_written_from_inside(attacked: Attacked) -> None:
    attacked.stopped("file.sysfs_cgroup_write")


def test_no_setting_of_the_hosts_kernel_can_be_written(attacked: Attacked) -> None:
    attacked.stopped("file.proc_sys_write")


def test_the_hosts_memory_log_and_tables_cannot_be_read(attacked: Attacked) -> None:
    attacked.stopped("file.proc_sensitive")


def test_no_file_becomes_setuid_in_any_way(attacked: Attacked) -> None:
    attacked.stopped("file.setuid_file")


def test_no_file_is_given_capabilities(attacked: Attacked) -> None:
    attacked.stopped("file.file_capabilities")


def test_a_read_only_file_is_not_changed_through_memory(attacked: Attacked) -> None:
    attacked.stopped("file.write_through_own_memory")


def test_no_program_runs_from_shared_memory(attacked: Attacked) -> None:
    attacked.stopped("file.run_from_shared_memory")


def test_an_agent_cannot_rewrite_its_own_identity(attacked: Attacked) -> None:
    attacked.stopped("file.rewrite_own_identity")
