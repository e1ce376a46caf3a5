"""An object store on this machine: as much of S3's HTTP interface as delta-rs uses, objects kept in memory."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape


class Bucket:
    """The objects, and uploads that are not finished."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    bucket: Bucket

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        key, query = self._asked()
        if "list-type" in query:
            self._list(query)
        elif (content := self.bucket.objects.get(key)) is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        else:
            self._send_object(content)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        key, query = self._asked()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "uploadId" in query:
            self.bucket.parts[query["uploadId"][0]][int(query["partNumber"][0])] = body
            self._answer(200, headers={"ETag": _tag(body)})
            return
        with self.bucket.lock:
            held = self.bucket.objects.get(key)
            wanted = self.headers.get("If-Match")
            if (self.headers.get("If-None-Match") == "*" and held is not None) or (
                wanted is not None and (held is None or _tag(held) != wanted)
            ):
                self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
                return
            self.bucket.objects[key] = body
        self._answer(200, headers={"ETag": _tag(body)})

    def do_POST(self) -> None:
        key, query = self._asked()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "uploads" in query:
            upload = f"upload-{len(self.bucket.parts)}"
            self.bucket.parts[upload] = {}
            name = "InitiateMultipartUploadResult"
            text = (
                f"<{name}><Bucket>lake</Bucket><Key>{escape(key)}</Key><UploadId>{upload}</UploadId></{name}>"
            )
        elif "delete" in query:
            keys = [
                part.text or "" for part in ElementTree.fromstring(body).iter() if part.tag.endswith("Key")
            ]
            for gone in keys:
                self.bucket.objects.pop(gone, None)
            deleted = "".join(f"<Deleted><Key>{escape(gone)}</Key></Deleted>" for gone in keys)
            text = f"<DeleteResult>{deleted}</DeleteResult>"
        else:
            parts = self.bucket.parts.pop(query["uploadId"][0])
            content = b"".join(parts[number] for number in sorted(parts))
            self.bucket.objects[key] = content
            name = "CompleteMultipartUploadResult"
            text = (
                f"<{name}><Location>x</Location><Bucket>lake</Bucket><Key>{escape(key)}</Key>"
                f"<ETag>{_tag(content)}</ETag></{name}>"
            )
        self._answer(200, text.encode())

    def do_DELETE(self) -> None:
        key, _ = self._asked()
        self.bucket.objects.pop(key, None)
        self._answer(204)

    def _asked(self) -> tuple[str, dict[str, list[str]]]:
        parts = urlsplit(self.path)
        return unquote(parts.path).removeprefix("/lake").lstrip("/"), parse_qs(
            parts.query, keep_blank_values=True
        )

    def _list(self, query: dict[str, list[str]]) -> None:
        prefix, after = query.get("prefix", [""])[0], query.get("start-after", [""])[0]
        delimiter = query.get("delimiter", [""])[0]
        entries, folders = [], set()
        for key, content in sorted(self.bucket.objects.items()):
            if not key.startswith(prefix) or key <= after:
                continue
            rest = key[len(prefix) :]
            if delimiter and delimiter in rest:
                folders.add(prefix + rest.partition(delimiter)[0] + delimiter)
                continue
            entries.append(
                f"<Contents><Key>{escape(key)}</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified>"
                f"<ETag>{_tag(content)}</ETag><Size>{len(content)}</Size></Contents>"
            )
        entries += [
            f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>"
            for folder in sorted(folders)
        ]
        text = "<ListBucketResult><Name>lake</Name><IsTruncated>false</IsTruncated>"
        text += f"{''.join(entries)}</ListBucketResult>"
        self._answer(200, text.encode())

    def _send_object(self, content: bytes) -> None:
        headers = {
            "ETag": _tag(content),
            "Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT",
            "Accept-Ranges": "bytes",
        }
        span = self.headers.get("Range")
        if span is None:
            self._answer(200, content, headers)
            return
        first, _, last = span.removeprefix("bytes=").partition("-")
        start = int(first) if first else max(0, len(content) - int(last))
        end = min(int(last), len(content) - 1) if first and last else len(content) - 1
        headers["Content-Range"] = f"bytes {start}-{end}/{len(content)}"
        self._answer(206, content[start : end + 1], headers)

    def _answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _tag(content: bytes) -> str:
    return f'"{hashlib.md5(content).hexdigest()}"'


@contextmanager
def object_store() -> Iterator[dict[str, str]]:
    """The options under which delta-rs finds it as s3://lake.

    A process of its own: delta-rs waits for answers with the interpreter locked.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.lake.s3"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # clients hang up in the middle of answers, and it complains
        text=True,
    )
    assert process.stdout is not None
    try:
        yield {
            "aws_endpoint_url": f"http://127.0.0.1:{int(process.stdout.readline())}",
            "aws_allow_http": "true",
            "aws_region": "nowhere-1",
            "aws_access_key_id": "someone",
            "aws_secret_access_key": "something",
            "aws_conditional_put": "etag",
        }
    finally:
        process.kill()
        process.communicate()


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"bucket": Bucket()}))
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()
