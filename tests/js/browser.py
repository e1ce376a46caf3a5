"""A real Chromium, and a site whose one page has the JavaScript client as `window.unisono`."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.js.node import CLIENTS, TIMEOUT_S
from tests.waiting import PATIENCE_S

PAGE = """<!doctype html><meta charset="utf-8"><title>test</title>
<script type="module">
  import * as unisono from "./client.js";
  window.unisono = unisono;
  window.open_client = async ({ url, clientId, token, partition, name, options }) => {
    const store = unisono.createIndexedDbStore({ name });
    const client = unisono.createSyncClient({
      url, clientId, token: () => token, model: unisono.treeModel(), store, partitions: [partition],
      extensions: [unisono.presence(), unisono.history(), unisono.transactions(), unisono.treeUndo()],
      options: { backoffBaseMs: 20, backoffCapMs: 200, ...options },
    });
    window.problems = [];
    client.on("problem", (problem) => window.problems.push(problem.code));
    window.client = client;
    await client.start();
  };
  window.caught_up = () => window.client.caughtUp({ timeoutMs: PATIENCE_MS });
</script>
""".replace("PATIENCE_MS", str(int(PATIENCE_S * 1000)))


class _Handler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


def _bundle(source: str, target: Path) -> None:
    esbuild = str(CLIENTS / "node_modules/.bin/esbuild")
    options = ["--bundle", "--format=esm", "--log-level=error", '--define:process.env.NODE_ENV="production"']
    subprocess.run(
        [esbuild, str(CLIENTS / source), *options, f"--outfile={target}"], check=True, timeout=TIMEOUT_S
    )


@contextlib.contextmanager
def site(directory: Path) -> Iterator[str]:
    """The address of a page with the client, bundled as a browser loads it."""
    _bundle("packages/client/dist/index.js", directory / "client.js")
    _bundle("packages/react/test/app.mjs", directory / "react.js")
    (directory / "index.html").write_text(PAGE)
    (directory / "react.html").write_text(
        '<!doctype html><body><script type="module" src="react.js"></script>'
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=str(directory)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """The system's Chromium, without a window."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.fail("there is no Chromium: run `make setup-js`")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=found, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        try:
            yield browser
        finally:
            browser.close()


def opened(page: Page, address: str) -> Page:
    """A page whose client can be started."""
    page.set_default_timeout(PATIENCE_S * 1000)
    page.goto(address)
    page.wait_for_function("window.open_client !== undefined")
    return page
