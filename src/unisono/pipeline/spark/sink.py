"""Submits events from Spark to a running server, which judges them: `df.write.format("unisono")`.

    (df.write.format("unisono")
       .option("url", "ws://127.0.0.1:8080").option("jwt_secret_file", "secret")
       .mode("append").save())

A stream is written with the same options, by `stream.writeStream.format("unisono")`, one write per micro-batch.

Every event is submitted over the protocol's WebSocket and judged like any client's. An event has an id before it is
sent, and the server commits an id once (ORD-03), so a retried task commits nothing twice. Within a task events are
submitted in the order of its rows; between tasks there is no order.

Columns: `id`, `partitions` (array) or `partition`, and `event` (JSON) or `schema` with `data` (JSON) and perhaps
`meta` (JSON).

Identity (a client has one connection, CONN-05, so every task needs its own client):

    jwt_secret_file   each task signs a token for the client CLIENT.TASK; read on the executors
    tokens_file       a token in each line, the Nth task uses the Nth; a task without one is an error
    token, token_file one token, for a DataFrame of one partition (coalesce(1))

Other options:

    client_id         before the dot, with jwt_secret_file (default: spark- and a random part, new for each write)
    prefixes          JSON array of partition prefixes the signed tokens are good for (default [""]: all)
    audience, issuer  claims of the signed tokens
    profile           canonical (default) or compatibility
    id                column (default), or content: the id is a digest of partitions and event, so that equal events
                      become one
    on_reject         fail (default): a task stops at its first rejected event, and the write fails with what was
                      rejected; collect: they go to the directory `rejects` as Parquet, and the write succeeds
    rejects           that directory, which the driver and all executors must have
    batch             events per message (default 100, and never more than the server takes)
    in_flight         messages sent before the first is answered (default 2)
    timeout_s         how long a task tries again when nothing is answered (default 60)
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import ArrayType, DataType, NullType, StringType, StructType

from unisono.display import hide_credentials
from unisono.pipeline.errors import PipelineError
from unisono.pipeline.spark.sinking.answers import Rejection, SinkTarget
from unisono.pipeline.spark.sinking.exchange import Exchange
from unisono.pipeline.spark.sinking.items import SinkItem, to_items
from unisono.pipeline.spark.sinking.tokens import Tokens
from unisono.vocabulary import URL_START

EXAMPLES: Final = 3
"""Rejected events named in the error of a failed write."""

BATCH_EVENTS: Final = 100
"""The protocol's own default (LIM-01)."""

IN_FLIGHT: Final = 2
"""Messages in flight: one is judged while the next is sent; a server accepts 200 unanswered events by default."""

TIMEOUT_S: Final = 60.0

REJECT_SCHEMA: Final = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("partitions", pa.list_(pa.field("element", pa.string()))),
        pa.field("event", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("errors", pa.string()),
    ]
)

_OPTIONS: Final = frozenset(
    (
        "url", "token", "token_file", "tokens_file", "jwt_secret_file", "client_id", "prefixes", "audience", "issuer",
        "profile", "id", "on_reject", "rejects", "batch", "in_flight", "timeout_s", "path",
    )
)  # fmt: skip


_CHECKPOINT: Final = "checkpointlocation"
"""Spark passes its own option of a stream on to the writer."""

_TEXTS: Final = frozenset(("id", "partition", "event", "schema", "data", "meta"))
"""Columns that are read, besides `partitions`; all others are ignored."""


class SinkFailed(PipelineError):
    """Events could not be submitted, or were rejected; those that were committed stay committed."""


class WriteSummary(WriterCommitMessage):
    """The result of one task. `fault` is the error that a retry would not change."""

    def __init__(
        self, rejected: int = 0, examples: Sequence[str] = (), file: str | None = None, fault: str = ""
    ) -> None:
        self.rejected = rejected
        self.fault = fault
        self.examples = examples
        self.file = file


class EventWriter(DataSourceArrowWriter):
    """One write, as plain data: it is shipped to executors."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        given = {name.lower(): value for name, value in options.items()}
        unknown = sorted(set(given) - _OPTIONS)
        if unknown:
            raise PipelineError(
                f"option {unknown[0]!r} is unknown; known options are {', '.join(sorted(_OPTIONS))}"
            )
        if overwrite:
            raise PipelineError('a log is only ever added to: write with mode("append")')
        self._from_content = _choice(given, "id", ("column", "content")) == "content"
        _require_columns(schema, self._from_content)
        self._collect = _choice(given, "on_reject", ("fail", "collect")) == "collect"
        if self._collect and not given.get("rejects"):
            raise PipelineError('on_reject=collect needs .option("rejects", DIRECTORY)')
        self._rejects = _directory(given.get("rejects", ""))
        _require_address(given.get("url", ""))
        self._job = secrets.token_hex(4)
        self._tokens = Tokens.of(given, f"spark-{self._job}")
        self._target = SinkTarget(
            given["url"],
            _choice(given, "profile", ("canonical", "compatibility")),
            _number(given, "batch", BATCH_EVENTS),
            _number(given, "in_flight", IN_FLIGHT),
            float(_number(given, "timeout_s", int(TIMEOUT_S))),
        )

    def write(self, iterator: Iterator[Any]) -> WriteSummary:
        """On an executor: submit the rows of one partition."""
        context = TaskContext.get()
        task = context.partitionId() if context is not None else 0
        attempt = context.taskAttemptId() if context is not None else 0
        try:
            return self._submit(iterator, task, attempt)
        except PipelineError as error:
            return WriteSummary(fault=str(error))

    def _submit(self, iterator: Iterator[Any], task: int, attempt: int) -> WriteSummary:
        rejections: list[Rejection] = []
        collected = _Collected(self._place(task, attempt)) if self._collect else None
        rejected = 0
        with Exchange(self._target, self._tokens.of_task(task)) as exchange:
            for rejection in exchange.submit(self._items(iterator)):
                rejected += 1
                if len(rejections) < EXAMPLES:
                    rejections.append(rejection)
                if collected is None:
                    break  # later events may depend on a rejected one
                collected.add(rejection)
        file = collected.close() if collected is not None else None
        return WriteSummary(rejected, [rejection.text() for rejection in rejections], file)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        summaries = [message for message in messages if isinstance(message, WriteSummary)]
        faults = [message.fault for message in summaries if message.fault]
        if faults:
            raise SinkFailed(
                f"{len(faults)} of {len(summaries)} tasks gave up: {faults[0]}. What was committed stays, and is "
                "skipped when this is written again"
            )
        rejected = sum(message.rejected for message in summaries)
        if self._collect:
            self._name_files(summaries)
        elif rejected:
            examples = [example for message in summaries for example in message.examples][:EXAMPLES]
            raise SinkFailed(
                f"{rejected} events were rejected (every task stopped at its first): {'; '.join(examples)}. "
                "What was committed stays; correct them and write again, or use on_reject=collect"
            )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing to undo: committed events stay, and a new write skips them."""

    def _items(self, batches: Iterator[Any]) -> Iterator[SinkItem]:
        for batch in batches:
            yield from to_items(batch, from_content=self._from_content)

    def _place(self, task: int, attempt: int) -> Path:
        return self._rejects / f".{self._job}-{task:05d}-{attempt}.parquet"

    def _name_files(self, summaries: list[WriteSummary]) -> None:
        """Rename the files of successful attempts; others keep their dot, and readers ignore them."""
        for message in summaries:
            if message.file is not None:
                path = Path(message.file)
                try:
                    path.rename(path.with_name(path.name.removeprefix(".")))
                except OSError as error:
                    raise SinkFailed(
                        f"rejected events are in {path} of an executor, which the driver does not have "
                        f"({error.strerror}): name a directory that all of them share by the option rejects, and "
                        "write again; what was committed is skipped"
                    ) from error


class StreamEventWriter(DataSourceStreamArrowWriter):
    """`writeStream.format("unisono")`: each micro-batch is one write.

    Spark replays a micro-batch that it has not recorded as done; ids that were committed are skipped.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        given = {name: value for name, value in options.items() if name.lower() != _CHECKPOINT}
        self._writer = EventWriter(given, schema, overwrite)

    def write(self, iterator: Iterator[Any]) -> WriteSummary:
        return self._writer.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        self._writer.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        self._writer.abort(messages)


class _Collected:
    """Rejected events of one task, in a file that the driver renames when the write succeeds."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PipelineError(f"cannot write rejected events to {path.parent}: {error.strerror}") from error
        self._path = path
        self._rows: list[Rejection] = []
        self._writer: Any = None

    def add(self, rejection: Rejection) -> None:
        self._rows.append(rejection)
        if len(self._rows) >= BATCH_EVENTS:
            self._flush()

    def close(self) -> str | None:
        self._flush()
        if self._writer is None:
            return None
        self._writer.close()
        return str(self._path)

    def _flush(self) -> None:
        if not self._rows:
            return
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, REJECT_SCHEMA)
        rows, self._rows = self._rows, []
        columns = [
            [each.item.id for each in rows],
            [each.item.partitions for each in rows],
            [bytes(each.item.event) for each in rows],
            [each.reason for each in rows],
            [msgspec.json.encode(each.errors).decode() for each in rows],
        ]
        self._writer.write_batch(
            pa.RecordBatch.from_arrays(
                [pa.array(c, f.type) for c, f in zip(columns, REJECT_SCHEMA, strict=True)],
                schema=REJECT_SCHEMA,
            )
        )


def _require_columns(schema: StructType, from_content: bool) -> None:
    """Refuse a schema that cannot be submitted, before tasks start."""
    columns = {field.name: field.dataType for field in schema.fields}
    if from_content:
        columns.pop("id", None)
    elif "id" not in columns:
        raise PipelineError(
            "a column id (string) is needed, so that a retried task commits nothing twice; option id=content makes "
            "ids from the events, and equal events one"
        )
    if not columns.keys() & {"partition", "partitions"}:
        raise PipelineError("a column partitions (array of string) or partition (string) is needed")
    if "event" not in columns and not columns.keys() >= {"schema", "data"}:
        raise PipelineError("a column event (JSON as string), or schema and data (JSON as string), is needed")
    for name, kind in columns.items():
        if name == "partitions":
            valid, expected = isinstance(kind, ArrayType) and _is_text(kind.elementType), "array of string"
        else:
            valid, expected = name not in _TEXTS or _is_text(kind), "string"
        if not valid:
            raise PipelineError(f"column {name} must be {expected}, not {kind.simpleString()}")


def _is_text(kind: DataType) -> bool:
    return isinstance(kind, StringType | NullType)


def _require_address(url: str) -> None:
    if not url:
        raise PipelineError('.option("url", "ws://HOST:PORT") is missing')
    if not url.startswith(("ws://", "wss://")):
        raise PipelineError(
            f"option url is {hide_credentials(url)!r}: it must start with ws:// or wss://, as ws://HOST:PORT"
        )


def _directory(text: str) -> Path:
    """Where rejected events go; a URL would be taken for a relative path."""
    if URL_START.match(text):
        raise PipelineError(
            f"option rejects is {text!r}: it must be a directory that the driver and all executors have"
        )
    return Path(text).absolute()


def _choice(options: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    value = options.get(name, choices[0])
    if value not in choices:
        raise PipelineError(f"option {name} must be {' or '.join(choices)}, not {value!r}")
    return value


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name, str(default))
    if not text.isdigit() or not int(text):
        raise PipelineError(f"option {name} must be a whole number from 1 on, not {text!r}")
    return int(text)
