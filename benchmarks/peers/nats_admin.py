"""One request to JetStream: to make a stream."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence

from benchmarks.peers.system import HOST


def create_stream(port: int, name: str, subjects: Sequence[str]) -> None:
    config = {
        "name": name, "subjects": list(subjects), "storage": "file", "retention": "limits", "num_replicas": 1,
        "allow_atomic": True,
    }  # fmt: skip
    payload = json.dumps(config).encode()
    with socket.create_connection((HOST, port), 10) as connection:
        connection.sendall(
            b'CONNECT {"verbose":false}\r\nSUB _INBOX.admin 1\r\n'
            + f"PUB $JS.API.STREAM.CREATE.{name} _INBOX.admin {len(payload)}\r\n".encode()
            + payload
            + b"\r\n"
        )
        answer = b""
        while b"MSG _INBOX.admin" not in answer or not answer.endswith(b"}\r\n"):
            more = connection.recv(65536)
            if not more:
                raise ConnectionError(f"NATS closed the connection: {answer!r}")
            answer += more
    if b'"error"' in answer:
        raise ValueError(answer.decode(errors="replace"))
