"""Azure's blob storage on this machine: Microsoft's own server Azurite, from npm, objects kept in memory.

It is installed into the virtual environment's directory when it is first needed, some 300 MB, so tests with it are
marked soak.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

VERSION, NODE = "3.37.0", "22.23.3"
"""Delta-rs lists a table's commits from one on, which earlier versions pass over. This one needs a newer Node than
Debian has, which npm has too."""

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""What Azurite has unless told otherwise, and everybody knows."""

CONTAINER = "lake"


@contextmanager
def azure_store() -> Iterator[dict[str, str]]:
    """The options under which delta-rs finds it as az://lake."""
    modules = _installed() / "node_modules"
    node, main = modules / "node" / "bin" / "node", modules / "azurite" / "dist" / "src" / "blob" / "main.js"
    process = subprocess.Popen(
        [str(node), str(main), "--blobHost", "127.0.0.1", "--blobPort", "0", "--inMemoryPersistence", "--silent",
         "--skipApiVersionCheck", "--disableTelemetry"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        port = next(found[1] for line in process.stdout if (found := re.search(r"listens on .*:(\d+)", line)))
        endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
        _make_container(endpoint)
        yield {
            "azure_storage_account_name": ACCOUNT,
            "azure_storage_account_key": KEY,
            "azure_storage_endpoint": endpoint,
            "allow_http": "true",
        }
    finally:
        process.kill()
        process.communicate()


def _installed() -> Path:
    folder = Path(sys.prefix) / "var" / f"azurite-{VERSION}"
    if not (folder / "done").exists():
        packages = [f"azurite@{VERSION}", f"node@{NODE}"]
        command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), *packages]
        subprocess.run(command, check=True, capture_output=True)
        (folder / "done").touch()
    return folder


def _make_container(endpoint: str) -> None:
    now, version = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT"), "2021-08-06"
    resource = f"/{ACCOUNT}/{ACCOUNT}/{CONTAINER}\nrestype:container"
    signed = "PUT" + "\n" * 12 + f"x-ms-date:{now}\nx-ms-version:{version}\n{resource}"
    digest = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
    signature = base64.b64encode(digest).decode()
    headers = {
        "x-ms-date": now,
        "x-ms-version": version,
        "Authorization": f"SharedKey {ACCOUNT}:{signature}",
    }
    url = f"{endpoint}/{CONTAINER}?restype=container"
    with urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers)) as answer:
        assert answer.status == 201
