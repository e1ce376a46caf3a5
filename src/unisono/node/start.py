"""Starting a node: its sockets, its processes in order, then the supervisor that watches them.

Authority, then reader, then fronts: each connects to the ones before it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from multiprocessing import current_process
from pathlib import Path

from unisono.authority.stuck_rules import CallWatch, RunningCall, StuckFile
from unisono.config import Settings
from unisono.front.access import Access
from unisono.front.auth.verify import Verifier
from unisono.model.load import Model
from unisono.node.processes import (
    ChildProcesses,
    StartFailed,
    front_role,
    run_authority,
    run_front,
    run_reader,
)
from unisono.node.supervisor import AdminSite, Supervisor

log = logging.getLogger("unisono.node")


def listen(host: str, port: int, fronts: int) -> list[socket.socket]:
    """One listening socket per front on one port; a port in use is an OSError, also when another server has it."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family) as probe:
            # This socket has no SO_REUSEPORT, so that a second server cannot share the port of a running one.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            port = probe.getsockname()[1]
    except OSError as error:
        raise OSError(error.errno, f"{host}:{port}: {error.strerror}") from None
    sockets = []
    for _ in range(fronts):
        sock = socket.socket(family)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if fronts > 1:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((host, port))
        sock.listen(1024)
        sockets.append(sock)
    return sockets


def serve(
    settings: Settings,
    model: Model,
    make_verifier: Callable[[], Verifier],
    access: Access,
    announce: Callable[[str], None],
    site: AdminSite | None = None,
) -> int:
    """Run a node until it is asked to stop. The settings were checked before. `site` adds to the admin port."""
    current_process().name = "node"  # the field `process` of log lines
    listening = listen(settings.host, settings.port, settings.fronts)
    (admin_socket,) = listen(settings.host, settings.admin_port, 1)
    Path(settings.data).mkdir(parents=True, exist_ok=True)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    ws_url = f"ws://{host}:{listening[0].getsockname()[1]}/sync"
    admin_url = f"http://{host}:{admin_socket.getsockname()[1]}"

    stuck = StuckFile(Path(settings.data))
    running = RunningCall(stuck.load())
    processes = ChildProcesses()
    processes.track([*listening, admin_socket])
    to_authority = [processes.pair() for _ in listening]
    to_reader = [processes.pair() for _ in listening]
    try:
        ends = [there for _, there in to_authority]
        processes.fork(
            "authority", ends, lambda c: run_authority(settings, model, c, ends, running)
        ).wait_ready()
        reader_ends = [there for _, there in to_reader]
        processes.fork("reader", reader_ends, lambda c: run_reader(settings, c, reader_ends)).wait_ready()
        for index, sock in enumerate(listening):
            authority, reader = to_authority[index][0], to_reader[index][0]
            processes.fork(
                front_role(index),
                [authority, reader, sock],
                lambda c, i=index, a=authority, r=reader, s=sock: run_front(  # type: ignore[misc]
                    i, settings, make_verifier, access, control=c, authority=a, reader=r, listening=[s]
                ),
            )
    except StartFailed as error:
        processes.kill()
        log.error("%s", error, extra={"child": error.role, "exit_code": error.code})
        return error.code
    admin_copy = admin_socket.dup()
    processes.close_child_ends()
    calls = CallWatch(running, stuck, settings.rule_timeout_s)
    supervisor = Supervisor(settings, processes.children, (ws_url, admin_url), calls)
    return asyncio.run(supervisor.run(admin_copy, announce, site))
