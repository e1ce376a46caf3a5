"""Google Cloud Storage on this machine, as delta-rs uses its XML interface: moto's server behind Google's headers.

Both interfaces have the same requests and answers for objects and lists. What is Google's own is done here: a put on
the condition `x-goog-if-generation-match: 0`, and requests signed by the key of a service account. No server of
Google's interface that knows conditional puts is in the registries.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.lake.s3 import KEY, REGION, App, one_at_a_time, serve

ACCOUNT = "lakes@project.iam.gserviceaccount.com"
SCOPES = "https://www.googleapis.com/auth/"

OF_S3 = (
    f"AWS4-HMAC-SHA256 Credential={KEY}/20260101/{REGION}/s3/aws4_request, SignedHeaders=host, Signature=0"
)
"""Moto shows objects to somebody with a key only, whoever it is."""


@contextmanager
def google_store(folder: Path) -> Iterator[Path]:
    """The file with the key of the service account, by which delta-rs finds it as gs://lake."""
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "public.pem").write_bytes(public)
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "tests.lake.gcs", str(folder / "public.pem")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        port = int(process.stdout.readline())
        credentials = folder / "account.json"
        credentials.write_text(
            json.dumps(
                {
                    "type": "service_account",
                    "gcs_base_url": f"http://127.0.0.1:{port}",
                    "client_email": ACCOUNT,
                    "private_key_id": "one",
                    "private_key": private.decode(),
                }
            )
        )
        yield credentials
    finally:
        process.kill()
        process.communicate()


def as_google(app: App, public: bytes) -> App:
    def call(request: dict[str, Any], answer: Any) -> Iterable[bytes]:
        fault = signature_fault(request.pop("HTTP_AUTHORIZATION", ""), public)
        if fault:
            request["wsgi.input"].read(int(request.get("CONTENT_LENGTH") or 0))
            answer("401 Unauthorized", [("Content-Type", "application/xml")])
            return [f"<Error><Code>{fault}</Code></Error>".encode()]
        request["HTTP_AUTHORIZATION"] = OF_S3
        condition = request.pop("HTTP_X_GOOG_IF_GENERATION_MATCH", None)
        if condition == "0":
            request["HTTP_IF_NONE_MATCH"] = "*"
        return app(request, answer)

    return call


def signature_fault(authorization: str, public: bytes) -> str | None:
    try:
        claims = jwt.decode(
            authorization.removeprefix("Bearer "), public, ["RS256"], options={"require": ["exp"]}
        )
    except jwt.InvalidTokenError:
        return "AuthenticationRequired"
    return None if claims["iss"] == ACCOUNT and claims["scope"].startswith(SCOPES) else "AccessDenied"


if __name__ == "__main__":
    serve(lambda app: as_google(one_at_a_time(app), Path(sys.argv[1]).read_bytes()))
