"""Checks the certificate of an erasure: its own hash, a signature, and what the lake says of it. Needs no Spark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import jwt
import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.api_jws import PyJWS

from unisono.lake.lake import Lake
from unisono.lake.run_tables import RUNS, read_rows
from unisono.pipeline.errors import PipelineError
from unisono.pipeline.jobs.erase.certificate import ErasureCertificate, events_sha256
from unisono.pipeline.jobs.erase.erasure_table import ErasureRecord, erasures

TYPE: Final = "unisono-erasure+json"

_FIELDS: Final = frozenset(ErasureCertificate.__struct_fields__)

_CURVE: Final = ec.SECP256R1.name

_KEYS: Final[Sequence[tuple[Any, str]]] = (
    ((ed25519.Ed25519PrivateKey, ed25519.Ed25519PublicKey), "EdDSA"),
    ((rsa.RSAPrivateKey, rsa.RSAPublicKey), "PS256"),
    ((ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey), "ES256"),
)


class CertificateCheck(msgspec.Struct, frozen=True):
    """What is confirmed of a certificate, and what contradicts it."""

    confirmed: list[str]
    faults: list[str]


def read_certificate(content: bytes) -> ErasureCertificate:
    try:
        return msgspec.json.decode(content, type=ErasureCertificate)
    except msgspec.DecodeError as error:
        raise PipelineError(f"this is not a certificate of an erasure: {error}") from error


def load_key(pem: bytes, *, private: bool) -> Any:
    """A key from PEM; PipelineError for one that cannot sign or check."""
    try:
        if private:
            key: Any = serialization.load_pem_private_key(pem, None)
        else:
            key = serialization.load_pem_public_key(pem)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        kind = "private key without a password" if private else "public key"
        raise PipelineError(f"this is not a {kind} in PEM: {error}") from error
    _algorithm(key)
    return key


def sign(certificate: ErasureCertificate, key: Any) -> bytes:
    """The certificate as a JSON Web Signature, in its compact form."""
    token = PyJWS().encode(certificate.json(), key, _algorithm(key), headers={"typ": TYPE})
    return f"{token}\n".encode()


def check(
    content: bytes, lake: Lake | None = None, signature: bytes | None = None, key: Any = None
) -> CertificateCheck:
    """Check a certificate by itself, by its signature where a key is given, and by the lake where one is."""
    certificate, confirmed, faults = read_certificate(content), list[str](), list[str]()

    def told(holds: bool, right: str, wrong: str) -> None:
        (confirmed if holds else faults).append(right if holds else wrong)

    told(
        certificate.is_unchanged(), "its content has its hash", "its content was changed: the hash is another"
    )
    if strange := _not_hashed(content):
        faults.append(f"it has {', '.join(map(repr, strange))}, which its hash is not of")
    told(certificate.complete, "nothing of the erased content was found", "erased content remained")
    if key is not None:
        signed = signature is not None and _signed_content(signature, key) == certificate.json()
        told(signed, "the signature is of this key and of this content", "it is not signed by this key")
    if lake is not None:
        kept = any(row == certificate for row in _kept(lake))
        told(kept, "the lake keeps the same certificate", "the lake keeps no such certificate")
        _check_events(certificate, lake, told)
    return CertificateCheck(confirmed, faults)


def _not_hashed(content: bytes) -> list[str]:
    """Names that a certificate does not have, and those that it has more than once, of which only the last counts."""
    names = [name for name, _ in json.loads(content, object_pairs_hook=list)]
    return sorted({name for name in names if name not in _FIELDS or names.count(name) > 1})


def _check_events(certificate: ErasureCertificate, lake: Lake, told: Any) -> None:
    first, last = certificate.first_committed_id, certificate.last_committed_id
    recorded = [row for row in erasures(lake) if first <= row.committed_id <= last]
    told(
        any(certificate.events_sha256 == _listed(rows) for rows in _runs_of(certificate, recorded)),
        f"the table erasures has these {certificate.events} events",
        "the table erasures has not the same events, or has them of several erasures",
    )
    tombstones = _tombstones(lake, first, last)
    missing = [row.committed_id for row in recorded if row.committed_id not in tombstones]
    told(
        not missing and len(recorded) >= certificate.events,
        "each of them is a tombstone in the lake",
        f"event {missing[0] if missing else first} is not a tombstone in the lake",
    )


def _runs_of(certificate: ErasureCertificate, recorded: list[ErasureRecord]) -> list[list[ErasureRecord]]:
    """The events that the certificate can be of: of its own time, of one earlier time, or all."""
    began, ended = certificate.began_at, certificate.ended_at
    times = {row.erased_at for row in recorded}
    same = [[row for row in recorded if row.erased_at == time] for time in sorted(times)]
    return [[row for row in recorded if began <= row.erased_at <= ended], recorded, *same]


def _listed(rows: list[ErasureRecord]) -> str:
    return events_sha256((row.committed_id, row.id, row.erased_at) for row in rows)


def _tombstones(lake: Lake, first: int, last: int) -> set[int]:
    view, found = lake.view(), set[int]()
    if first > view.head:
        return found
    for batch in view.scan_arrow(
        since=first - 1, upto=min(last, view.head), columns=("committed_id", "type")
    ):
        ids, kinds = (batch.column(name).to_pylist() for name in ("committed_id", "type"))
        found.update(id for id, kind in zip(ids, kinds, strict=True) if kind == "erased")
    return found


def _kept(lake: Lake) -> list[ErasureCertificate]:
    rows = read_rows(lake.storage, RUNS).to_pylist()
    documents = [row["document"] for row in rows if row["job"] == "erase" and row["document"]]
    return [read_certificate(document.encode()) for document in documents]


def _algorithm(key: Any) -> str:
    for kinds, algorithm in _KEYS:
        if isinstance(key, kinds) and not (algorithm == "ES256" and key.curve.name != _CURVE):
            return algorithm
    raise PipelineError("a key must be Ed25519, RSA or of the curve P-256")


def _signed_content(signature: bytes, key: Any) -> bytes | None:
    try:
        content: bytes = PyJWS().decode(signature.strip(), key, [_algorithm(key)])
    except jwt.InvalidTokenError:
        return None
    return content
