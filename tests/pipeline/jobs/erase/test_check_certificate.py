"""The certificate of an erasure is signed, and checked by itself and by its lake."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives import serialization as pem
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa

from tests.lake.lakes import HERE
from tests.pipeline.canaries import CULPRIT, append
from unisono.cli.main import main
from unisono.lake.lake import Lake
from unisono.lake.run_tables import RunRecord, record_runs
from unisono.pipeline.errors import PipelineError
from unisono.pipeline.jobs.erase.certificate import ErasureCertificate
from unisono.pipeline.jobs.erase.check_certificate import check, load_key, sign
from unisono.pipeline.jobs.erase.job import erase, plan
from unisono.pipeline.jobs.erase.select import Selector
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.open_log import sqlite_uri
from unisono.store.sqlite.log import SqliteLog

KEYS: list[Any] = [
    ed25519.Ed25519PrivateKey.generate(),
    ec.generate_private_key(ec.SECP256R1()),
    rsa.generate_private_key(public_exponent=65_537, key_size=2_048),
]


def private_pem(key: Any) -> bytes:
    content: bytes = key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.NoEncryption())
    return content


def public_pem(key: Any) -> bytes:
    content: bytes = key.public_key().public_bytes(pem.Encoding.PEM, pem.PublicFormat.SubjectPublicKeyInfo)
    return content


@pytest.fixture(scope="module")
def erased(tmp_path_factory: pytest.TempPathFactory) -> tuple[Lake, ErasureCertificate]:
    folder = tmp_path_factory.mktemp("erased")
    store, lake = sqlite_uri(folder / "data"), Lake.at(str(folder / "lake"))
    with closing(SqliteLog.open(folder / "data")) as log:
        append(log, 200)
    lake.make(buckets=2)
    export(HERE, store, lake)
    done = erase(HERE, store, lake, plan(HERE, store, lake, Selector("client", (CULPRIT,))), reason="a test")
    certificate = done.certificate.signed_off("Ann")
    document = certificate.json().decode()
    record_runs(lake.storage, [RunRecord("r", "erase", 0, 1.0, 5, True, document=document)])
    return lake, certificate


def test_all_of_it_holds(erased: tuple[Lake, ErasureCertificate]) -> None:
    lake, certificate = erased
    assert certificate.signed_off_by == "Ann"
    for key in KEYS:
        done = check(certificate.json(), lake, sign(certificate, key), key.public_key())
        assert done.faults == []
        assert len(done.confirmed) == 6


def test_what_was_changed_is_named(erased: tuple[Lake, ErasureCertificate]) -> None:
    lake, certificate = erased
    signature, key = sign(certificate, KEYS[0]), KEYS[0].public_key()
    forged = msgspec.structs.replace(certificate, signed_off_by="Bob")
    assert check(forged.json()).faults == ["its content was changed: the hash is another"]
    forged = forged.hashed()
    assert check(forged.json(), lake, signature, key).faults == [
        "it is not signed by this key",
        "the lake keeps no such certificate",
    ]
    assert check(certificate.json(), None, signature, KEYS[1].public_key()).faults == [
        "it is not signed by this key"
    ]
    assert check(certificate.json(), None, None, key).faults == ["it is not signed by this key"]
    other = msgspec.structs.replace(certificate, events_sha256="0" * 64, first_committed_id=1).hashed()
    assert "the table erasures has not the same events" in check(other.json(), lake).faults[1]


def test_what_the_hash_is_not_of_is_named(erased: tuple[Lake, ErasureCertificate]) -> None:
    content = erased[1].json()
    more = content.replace(b"{", b'{"note":"and Bob\'s","events":500,', 1)
    assert check(more).faults == ["it has 'events', 'note', which its hash is not of"]


@pytest.mark.parametrize(
    "key", [ec.generate_private_key(ec.SECP384R1()), ed448.Ed448PrivateKey.generate()], ids=["P-384", "Ed448"]
)
def test_keys_that_cannot_sign_are_refused_when_they_are_read(key: Any) -> None:
    """A wrong key must not end an erasure."""
    for content, private in ((private_pem(key), True), (public_pem(key), False)):
        with pytest.raises(PipelineError, match="Ed25519, RSA or of the curve P-256"):
            load_key(content, private=private)


def test_a_certificate_of_the_first_format(erased: tuple[Lake, ErasureCertificate]) -> None:
    first = msgspec.structs.replace(erased[1], format=1, signed_off_by=None).hashed()
    content = msgspec.json.decode(first.json())
    del content["signed_off_by"]
    assert check(msgspec.json.encode(content)).faults == []
    content["signed_off_by"] = "Eve"
    assert check(msgspec.json.encode(content)).faults == ["its content was changed: the hash is another"]


def test_the_command(erased: tuple[Lake, ErasureCertificate], tmp_path: Path) -> None:
    lake, certificate = erased
    paper, public = tmp_path / "a.json", tmp_path / "public.pem"
    paper.write_bytes(certificate.json())
    public.write_bytes(public_pem(KEYS[0]))
    key = load_key(private_pem(KEYS[0]), private=True)
    (tmp_path / "a.json.jws").write_bytes(sign(certificate, key))
    arguments = ["lake", "certificate", str(paper), "--key", str(public), "--lake", lake.storage.location]
    told = CliRunner().invoke(main, arguments)
    assert (told.exit_code, told.output.count("right: ")) == (0, 6), told.output
    paper.write_bytes(certificate.json().replace(b"Ann", b"Eve"))
    told = CliRunner().invoke(main, arguments)
    assert told.exit_code == 1
    assert "WRONG: its content was changed" in told.output
    with pytest.raises(PipelineError, match="not a private key without a password in PEM"):
        load_key(public_pem(KEYS[0]), private=True)
