"""Traces for OpenTelemetry: the path of an event through all processes is one trace."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import rotel
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Span_pb

from tests.behaviour.server.harness import running, set_event
from tests.ports import free_port
from tests.waiting import until
from unisono.ipc.tracing import QUEUE_SPANS, Tracer

SERVE = ("--access-default", "allow")
Span = dict[str, Any]


class Collector:
    """Takes what is posted to it: spans of a server, or those that a collector passes on, which are in Protobuf."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    content = gzip.decompress(content)
                is_json = self.headers["Content-Type"] == "application/json"
                body = json.loads(content) if is_json else decoded(content)
                assert self.path == "/v1/traces"
                for resource in body["resourceSpans"]:
                    known = attributes(resource["resource"])
                    for scope in resource["scopeSpans"]:
                        collector.spans += [
                            span | {"process": known["unisono.process"]} for span in scope["spans"]
                        ]
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def of(self, event_id: str) -> list[Span]:
        trace = hashlib.sha256(event_id.encode()).hexdigest()[:32]
        return [span for span in list(self.spans) if span["traceId"] == trace]


def decoded(content: bytes) -> Any:
    """A message of OTLP, in the form of its JSON; ids are hexadecimal there, unlike in other Protobuf JSON."""
    body = MessageToDict(ExportTraceServiceRequest.FromString(content), use_integers_for_enums=True)
    for resource in body["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for name in ("traceId", "spanId", "parentSpanId"):
                    if name in span:
                        span[name] = base64.b64decode(span[name]).hex()
    return body


def attributes(of: Any) -> dict[str, str]:
    return {each["key"]: next(iter(each["value"].values())) for each in of["attributes"]}


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()
    try:
        yield collector
    finally:
        collector.close()


@contextmanager
def passing_on(to: Collector, log: Path) -> Iterator[str]:
    """A collector of OpenTelemetry that passes on what it takes; its address."""
    program = Path(rotel.__file__).with_name("rotel-agent")
    http, grpc = free_port(), free_port()
    options = {
        "otlp-http-endpoint": f"127.0.0.1:{http}",
        "otlp-grpc-endpoint": f"127.0.0.1:{grpc}",
        "exporter": "otlp",
        "otlp-exporter-endpoint": to.url,
        "otlp-exporter-protocol": "http",
        "batch-timeout": "100ms",
    }
    command = [str(program), "start", *(f"--{name}={value}" for name, value in options.items())]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            until(lambda: listens(http), log.read_text)
            yield f"http://127.0.0.1:{http}"
        finally:
            process.kill()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_path_of_an_event_is_one_trace(tmp_path: Path) -> None:
    with collecting() as collector, passing_on(collector, tmp_path / "rotel.log") as address:
        tracing = ("--otel-endpoint", address, "--otel-sample", "1", "--fronts", "2")
        with (
            running(tmp_path / "data", *SERVE, *tracing) as server,
            server.client("listener") as listener,
            server.client("writer") as writer,
        ):
            listener.sync(["p"], subscription_partitions=["p"])
            assert writer.commit(["p"], set_event("a", 1), "e1") == 1
            listener.expect("event_broadcast")
            until(lambda: len(collector.of("e1")) == 4, lambda: str(collector.spans))
            assert writer.commit(["p"], set_event("a", 1), "e1") == 1
            until(lambda: len(collector.of("e1")) == 5, "the retry joins the trace")
    spans = collector.of("e1")
    by_name = {span["name"]: span for span in spans}
    assert set(by_name) == {"submit", "judge", "commit", "deliver"}
    root = by_name["submit"]
    assert not root.get("parentSpanId")
    assert (root["kind"], by_name["deliver"]["kind"]) == (
        Span_pb.SPAN_KIND_SERVER,
        Span_pb.SPAN_KIND_PRODUCER,
    )
    for name in ("judge", "commit", "deliver"):
        assert by_name[name]["parentSpanId"] == root["spanId"]
        assert attributes(by_name[name])["unisono.committed_id"] == "1"
    assert attributes(by_name["deliver"])["unisono.receivers"] == "1"
    assert by_name["judge"]["process"] == by_name["commit"]["process"] == "authority"
    assert by_name["submit"]["process"].startswith("front ")
    first = min(
        (span for span in spans if span["name"] == "submit"), key=lambda span: int(span["endTimeUnixNano"])
    )
    steps = [first, by_name["judge"], by_name["commit"], by_name["deliver"]]
    starts = [int(span["startTimeUnixNano"]) for span in steps]
    assert starts == sorted(starts)
    assert all(int(span["endTimeUnixNano"]) >= int(span["startTimeUnixNano"]) for span in spans)
    assert "value" not in json.dumps([attributes(span) for span in spans])


def test_a_collector_that_is_gone_delays_nobody(tmp_path: Path) -> None:
    tracing = ("--otel-endpoint", "http://127.0.0.1:9", "--otel-sample", "1")
    with running(tmp_path / "data", *SERVE, *tracing) as server:
        with server.client("writer") as writer:
            for number in range(1, 21):
                assert writer.commit(["p"], set_event("a", number)) == number
        until(lambda: "spans were not exported" in server.log.read_text(), "nothing is said of lost spans")


def test_events_are_chosen_by_their_ids_alone() -> None:
    with collecting() as collector:
        some, same, none = (Tracer(collector.url, share, "n") for share in (0.25, 0.25, 0.0))
        try:
            ids = [f"event-{number}" for number in range(4000)]
            chosen = [id for id in ids if some.chosen(id) is not None]
            assert 800 < len(chosen) < 1200
            assert chosen == [id for id in ids if same.chosen(id) is not None]
            assert not any(none.chosen(id) for id in ids)
        finally:
            for tracer in (some, same, none):
                tracer.close()


def test_what_waits_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    with collecting() as collector:
        tracer = Tracer(collector.url, 1.0, "n")
        ids = tracer.chosen("e")
        assert ids is not None
        with tracer._wake:  # nothing is taken meanwhile
            for number in range(QUEUE_SPANS + 7):
                tracer.add(ids, "judge", number, number)
        tracer.close()
        until(lambda: len(collector.spans) == QUEUE_SPANS, lambda: str(len(collector.spans)))
    assert "7 spans were not exported" in caplog.text
