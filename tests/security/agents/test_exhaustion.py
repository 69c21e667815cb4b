"""Exhaustion: what an attacker in a sandbox must not use up."""

from tests.security.conftest import Attacked


def test_a_fork_bomb_is_stopped(attacked: Attacked) -> None:
    attacked.stopped("dos.fork_bomb")


def test_a_memory_hog_is_stopped(attacked: Attacked) -> None:
    attacked.stopped("dos.memory_bomb")


def test_descriptors_come_to_an_end(attacked: Attacked) -> None:
    attacked.stopped("dos.fd_exhaustion")


def test_no_disk_is_filled_beyond_its_size(attacked: Attacked) -> None:
    attacked.stopped("dos.disk_fill")


def test_no_disk_is_flooded_with_files(attacked: Attacked) -> None:
    attacked.stopped("dos.inode_flood")


def test_a_cpu_hog_is_throttled_where_groups_can_do_that(attacked: Attacked) -> None:
    attacked.stopped("dos.cpu_hog")


def test_threads_come_to_an_end(attacked: Attacked) -> None:
    attacked.stopped("dos.threads")


def test_many_processes_have_no_more_memory_than_one(attacked: Attacked) -> None:
    attacked.stopped("dos.memory_of_many")


def test_memory_cannot_be_hoarded_in_files_that_no_process_maps(attacked: Attacked) -> None:
    attacked.stopped("dos.memory_in_files")


def test_memory_cannot_be_hoarded_in_files_that_no_process_may_see(attacked: Attacked) -> None:
    attacked.stopped("dos.memory_in_hidden_files")


def test_memory_cannot_be_hoarded_in_files_that_no_process_has_open(attacked: Attacked) -> None:
    attacked.stopped("dos.memory_in_flight")


def test_memory_cannot_be_hoarded_in_segments_that_no_process_has_attached(attacked: Attacked) -> None:
    attacked.stopped("dos.memory_in_segments")


def test_memory_cannot_be_hoarded_in_mappings_that_no_page_table_has(attacked: Attacked) -> None:
    attacked.stopped("dos.memory_in_mappings")


def test_memory_cannot_be_hoarded_in_pipes(attacked: Attacked) -> None:
    attacked.stopped("dos.memory_in_pipes")


def test_memory_cannot_be_hoarded_in_page_tables(attacked: Attacked) -> None:
    attacked.stopped("dos.memory_in_page_tables")


def test_no_file_looks_larger_than_it_may_be(attacked: Attacked) -> None:
    attacked.stopped("dos.sparse_file")


def test_the_users_inotify_instances_are_not_used_up(attacked: Attacked) -> None:
    attacked.stopped("dos.inotify_instances")


def test_the_users_queued_signals_are_not_used_up(attacked: Attacked) -> None:
    attacked.stopped("dos.queued_signals")


def test_pipes_dont_hold_what_memory_may_not(attacked: Attacked) -> None:
    attacked.stopped("dos.pipe_buffers")


def test_message_queues_come_to_an_end(attacked: Attacked) -> None:
    attacked.stopped("dos.message_queues")


def test_no_mapping_is_locked_beyond_the_limit(attacked: Attacked) -> None:
    attacked.stopped("dos.locked_pages")
