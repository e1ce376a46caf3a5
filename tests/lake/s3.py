"""A real S3 server on this machine: moto's, in a process of its own, objects kept in memory.

Of two conditional puts of one object at the same time only one may succeed. Moto looks and writes in two steps, so
requests that write are taken one at a time here.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

BUCKET = "lake"
KEY, SECRET, REGION = "someone", "something", "us-east-1"

App = Callable[[dict[str, Any], Any], Iterable[bytes]]


@contextmanager
def object_store(*, busy: bool = False, lossy: bool = False) -> Iterator[dict[str, str]]:
    """The options under which delta-rs finds it as s3://lake.

    `busy`: it answers the first try of about every second request with 503. `lossy`: it stores each commit, and
    answers its first try with 500.
    """
    more = [option for option, wanted in (("--busy", busy), ("--lossy", lossy)) if wanted]
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "tests.lake.s3", *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # a line for each request
        text=True,
    )
    assert process.stdout is not None
    try:
        yield {
            "aws_endpoint_url": f"http://127.0.0.1:{int(process.stdout.readline())}",
            "aws_allow_http": "true",
            "aws_region": REGION,
            "aws_access_key_id": KEY,
            "aws_secret_access_key": SECRET,
        }
    finally:
        process.kill()
        process.communicate()


def one_at_a_time(app: App) -> App:
    lock = threading.Lock()

    def call(request: dict[str, Any], answer: Any) -> Iterable[bytes]:
        if request["REQUEST_METHOD"] in ("GET", "HEAD"):
            return app(request, answer)
        with lock:
            return list(app(request, answer))

    return call


def signed(app: App) -> App:
    """Only requests with the right key are taken; moto itself takes any."""

    def call(request: dict[str, Any], answer: Any) -> Iterable[bytes]:
        if f"Credential={KEY}/" in request.get("HTTP_AUTHORIZATION", ""):
            return app(request, answer)
        request["wsgi.input"].read(int(request.get("CONTENT_LENGTH") or 0))
        answer("403 Forbidden", [("Content-Type", "application/xml")])
        return [b"<Error><Code>InvalidAccessKeyId</Code></Error>"]

    return call


def busy(app: App) -> App:
    refused: set[tuple[str, str, str]] = set()

    def call(request: dict[str, Any], answer: Any) -> Iterable[bytes]:
        asked = request["REQUEST_METHOD"], request["PATH_INFO"], request["QUERY_STRING"]
        if asked not in refused and len(request["PATH_INFO"]) % 2:
            refused.add(asked)
            request["wsgi.input"].read(int(request.get("CONTENT_LENGTH") or 0))
            answer("503 Slow Down", [("Content-Type", "application/xml")])
            return [b"<Error><Code>SlowDown</Code></Error>"]
        return app(request, answer)

    return call


def lossy(app: App) -> App:
    lost: set[str] = set()

    def call(request: dict[str, Any], answer: Any) -> Iterable[bytes]:
        place = request["PATH_INFO"]
        if request["REQUEST_METHOD"] != "PUT" or not place.endswith(".json") or place in lost:
            return app(request, answer)
        lost.add(place)
        list(app(request, lambda *_: None))
        answer("500 Internal Server Error", [("Content-Type", "application/xml")])
        return [b"<Error><Code>InternalError</Code></Error>"]

    return call


def serve(wrapped: Callable[[App], App]) -> None:
    """Serve moto's S3, wrapped, and print the port."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from moto.s3.models import s3_backends
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Requests(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

    s3_backends["123456789012"]["aws"].create_bucket(BUCKET, REGION)
    app = wrapped(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Requests)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()


def main(options: Sequence[str]) -> None:
    trouble = {"--busy": busy, "--lossy": lossy}
    wrappers = [signed, *(trouble[option] for option in options)]
    serve(lambda app: reduce(lambda inner, wrap: wrap(inner), wrappers, one_at_a_time(app)))


if __name__ == "__main__":
    main(sys.argv[1:])
