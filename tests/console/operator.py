"""An operator of a running server: HTTP requests to its console, with the token or with a session."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlencode, urlsplit

from tests.behaviour.server.harness import Server
from tests.waiting import PATIENCE_S
from unisono.ipc.files import read_admin_file

PAGE = {"X-Unisono-Console": "1"}
"""What pages of the console send with every request."""


class Answer:
    """An answer, read to its end."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    def json(self) -> Any:
        return json.loads(self.body)


class Operator:
    """Asks with the admin token unless a test gives other headers."""

    def __init__(self, server: Server) -> None:
        self.token = read_admin_file(server.data).token
        self._address = urlsplit(server.admin)

    def send(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        connection = http.client.HTTPConnection(
            str(self._address.hostname), self._address.port, timeout=PATIENCE_S
        )
        sent = {"Authorization": f"Bearer {self.token}"} if headers is None else headers
        try:
            connection.request(method, path, None if body is None else json.dumps(body), sent)
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def get(self, name: str, **parameters: Any) -> Any:
        """The JSON of a read that must succeed."""
        answer = self.send("GET", f"/api/{name}?{urlencode(parameters)}")
        assert answer.status == 200, answer.body
        return answer.json()

    def refused(self, name: str, status: int, **parameters: Any) -> str:
        """The error of a read that must be refused."""
        answer = self.send("GET", f"/api/{name}?{urlencode(parameters)}")
        assert answer.status == status, answer.body
        error: str = answer.json()["error"]
        return error

    def login(self) -> dict[str, str]:
        """The headers of a page that has logged in."""
        answer = self.send("POST", "/api/login", {"token": self.token}, PAGE)
        assert answer.status == 200, answer.body
        cookie = answer.headers["Set-Cookie"].partition(";")[0]
        return {**PAGE, "Cookie": cookie}
