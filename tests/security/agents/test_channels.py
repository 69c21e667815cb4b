"""Channels: what an attacker in a sandbox must not connect to, share or send through."""

from tests.security.conftest import Attacked


def test_no_socket_of_the_hosts_is_reached_by_its_path(attacked: Attacked) -> None:
    attacked.stopped("ipc.unix_socket_path")


def test_no_abstract_socket_of_the_hosts_is_reached(attacked: Attacked) -> None:
    attacked.stopped("ipc.unix_socket_abstract")


def test_no_shared_memory_of_the_hosts_is_attached(attacked: Attacked) -> None:
    attacked.stopped("ipc.sysv_shm")


def test_no_key_of_the_users_can_be_read(attacked: Attacked) -> None:
    attacked.stopped("ipc.kernel_keyring")


def test_no_service_on_the_hosts_loopback_is_reached(attacked: Attacked) -> None:
    attacked.stopped("net.host_loopback_tcp")


def test_there_is_no_route_to_anywhere(attacked: Attacked) -> None:
    attacked.stopped("net.route_to_metadata_or_internet")


def test_no_raw_socket_can_be_made(attacked: Attacked) -> None:
    attacked.stopped("net.raw_sockets")


def test_no_odd_socket_can_be_made(attacked: Attacked) -> None:
    attacked.stopped("surface.odd_socket_families")


def test_no_odd_protocol_can_be_spoken(attacked: Attacked) -> None:
    attacked.stopped("net.odd_socket_protocols")


def test_no_odd_pair_of_sockets_can_be_made(attacked: Attacked) -> None:
    attacked.stopped("net.odd_socket_pairs")


def test_the_hosts_network_is_not_seen(attacked: Attacked) -> None:
    attacked.stopped("net.see_the_hosts_network")


def test_no_message_queue_of_the_hosts_is_opened(attacked: Attacked) -> None:
    attacked.stopped("ipc.message_queue")


def test_no_key_outlives_its_agent(attacked: Attacked) -> None:
    attacked.stopped("ipc.persistent_keyring")


def test_no_id_of_the_hosts_shines_through_a_socket(attacked: Attacked) -> None:
    attacked.stopped("ipc.peer_of_its_own_socket")
