"""Counters of running servers, from their admin ports, that no log has."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from unisono.ipc.files import read_admin_file
from unisono.pipeline.errors import PipelineError
from unisono.pipeline.jobs.report.tables import Rejections, ServerCounts
from unisono.pipeline.open_log import sqlite_directory
from unisono.pipeline.progress import Notify, silent

TIMEOUT_S: Final = 5.0
ANSWER_BYTES_MAX: Final = 16 << 20
"""A page of metrics has some kilobytes; a longer answer comes from something else."""


def server_counts(urls: Sequence[str]) -> ServerCounts:
    """The counters of the servers whose admin ports are at `urls`, added up."""
    totals: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for url in urls:
        for family in text_string_to_metric_families(_metrics(url)):
            for sample in family.samples:
                if sample.name == "unisono_rejections_total":
                    reasons[sample.labels.get("reason", "")] += int(sample.value)
                totals[sample.name] += int(sample.value) if sample.name.endswith("_total") else 0
    return ServerCounts(
        len(urls),
        totals["unisono_commits_total"],
        totals["unisono_duplicates_total"],
        [
            Rejections(reason, items)
            for reason, items in sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0]))
        ],
    )


def counts_beside(store: str | None, notify: Notify = silent) -> ServerCounts | None:
    """The counters of the server on an embedded log; None without a server that answers."""
    directory = None if store is None else sqlite_directory(store)
    if directory is None:
        return None
    try:
        return server_counts([read_admin_file(directory).url])
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, PipelineError) as error:
        notify(f"rejections stay unknown: {error}")
        return None


def _metrics(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise PipelineError(f"{url!r} is no address of an admin port: http://HOST:PORT")
    address = f"{url.rstrip('/').removesuffix('/metrics')}/metrics"
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer:  # noqa: S310 - http or https, see above
            body: bytes = answer.read(ANSWER_BYTES_MAX)
    except (OSError, ValueError) as error:
        why = error.reason if isinstance(error, urllib.error.URLError) else error
        raise PipelineError(f"no metrics from {address}: {why}") from error
    try:
        text = body.decode()
        next(iter(text_string_to_metric_families(text)), None)
    except ValueError as error:
        raise PipelineError(f"{address} answers with something that is no metrics") from error
    return text
