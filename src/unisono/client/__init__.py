"""The Python client: offline first, with its own store, for asyncio programs and for scripts and notebooks.

async with SyncClient(url, token=…, client_id=…, store="ann.db", partitions=["team"]) as client: …
with unisono.client.connect(url, token=…, client_id=…, store="ann.db", partitions=["team"]) as client: …
"""

from unisono.client.api import Draft, PartitionPresence, Stream, SyncClient, Transaction
from unisono.client.blocking import (
    BlockingClient,
    BlockingDraft,
    BlockingPartitionPresence,
    BlockingStream,
    BlockingTransaction,
    connect,
)
from unisono.client.errors import (
    ClientClosed,
    ClientError,
    ClientStopped,
    HistoryUnavailable,
    InvalidEvent,
    ModelMissing,
    NotCaughtUp,
    StoreDamaged,
    StoreError,
    StoreFailed,
    StoreForeign,
    StoreFull,
    StoreInUse,
    StoreTooNew,
    TransactionRefused,
    UndoRefused,
    UnknownDraft,
    UnknownPartition,
)
from unisono.client.history import HistoryEntry, HistoryPage
from unisono.client.options import Options
from unisono.client.presence import Present, Roster
from unisono.client.status import Committed, Problem, Rejected, Status
from unisono.client.sync.state import Phase
from unisono.client.view.feeds import Change
from unisono.model.model import open_model

__all__ = [
    "BlockingClient",
    "BlockingDraft",
    "BlockingPartitionPresence",
    "BlockingStream",
    "BlockingTransaction",
    "Change",
    "ClientClosed",
    "ClientError",
    "ClientStopped",
    "Committed",
    "Draft",
    "HistoryEntry",
    "HistoryPage",
    "HistoryUnavailable",
    "InvalidEvent",
    "ModelMissing",
    "NotCaughtUp",
    "Options",
    "PartitionPresence",
    "Phase",
    "Present",
    "Problem",
    "Rejected",
    "Roster",
    "Status",
    "StoreDamaged",
    "StoreError",
    "StoreFailed",
    "StoreForeign",
    "StoreFull",
    "StoreInUse",
    "StoreTooNew",
    "Stream",
    "SyncClient",
    "Transaction",
    "TransactionRefused",
    "UndoRefused",
    "UnknownDraft",
    "UnknownPartition",
    "connect",
    "open_model",
]
