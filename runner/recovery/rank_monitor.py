"""The connection of a rank to its monitor, which ft_launcher runs: the same with NVRx 0.4.1 to 0.7."""

from __future__ import annotations

import os
import socket
import struct

from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient
from nvidia_resiliency_ext.fault_tolerance.data import InitMsg, OkMsg
from nvidia_resiliency_ext.fault_tolerance.rank_monitor_client import RankMonitorClientError
from nvidia_resiliency_ext.fault_tolerance.utils import read_obj_from_ipc_socket, write_object_to_ipc_socket

from runner.errors import MonitorGoneError
from runner.system.process import alive, failing_with

__all__ = ["RankMonitorClientError", "connect_to_rank_monitor", "send_heartbeat"]

ANSWER_TIMEOUT = 60.0  # seconds


def connect_to_rank_monitor() -> RankMonitorClient:
    """A connection to this rank's monitor, which a fault in start-up cannot spoil for the lives to come.

    The monitor outlives the workers. Where it loses two connections in a row that brought no heartbeat, as with two
    faults before the first step, it counts its rank as given up for good, and refuses heartbeats from then on. So one
    is sent at once. It would make the timeout of steps hold for the whole start-up: the message that opened the
    connection, sent once more, makes the monitor wait for a first heartbeat again.

    NVRx up to 0.5 waits for an answer to each heartbeat, for ever where the monitor is frozen. Here the wait has a
    limit, after which the heartbeat fails; the opening itself has none, and is a part of start-up.

    Raises:
        MonitorGoneError: nobody listens where the monitor did.
        RankMonitorClientError: the monitor refuses.
    """
    client = RankMonitorClient()
    try:
        client.init_workload_monitoring()
    except (ConnectionRefusedError, FileNotFoundError) as error:
        raise MonitorGoneError(int(os.environ["RANK"])) from error
    client.rank_monitor_socket.settimeout(ANSWER_TIMEOUT)
    client.send_heartbeat()
    opening = InitMsg.__new__(InitMsg)  # its constructor differs between the versions
    opening.rank_info, opening.iteration, opening.num_warmup_iters = client.rank_info, None, None
    write_object_to_ipc_socket(opening, client.rank_monitor_socket)
    reply = read_obj_from_ipc_socket(client.rank_monitor_socket)
    if not isinstance(reply, OkMsg):
        raise RankMonitorClientError(f"the rank monitor answered {reply!r} to a second opening")
    return client


def send_heartbeat(client: RankMonitorClient) -> None:
    """Tell the rank monitor that this rank goes on.

    Raises:
        MonitorGoneError: it has ended.
        RankMonitorClientError: it refuses, or does not answer.
    """
    try:
        client.send_heartbeat()
    except RankMonitorClientError as error:
        if _has_ended(_listener(client.rank_monitor_socket)):
            raise MonitorGoneError(int(os.environ["RANK"])) from error
        raise


def _listener(connected: socket.socket) -> int:
    """The process that listened on a UNIX socket when this one connected."""
    pid, _, _ = struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(pid)


def _has_ended(pid: int) -> bool:
    """Whether a process is gone or about to be: its connections are closed a moment before."""
    return not alive(pid) or failing_with(pid) is not None
