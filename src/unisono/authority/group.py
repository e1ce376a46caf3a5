"""One group: requests judged in order and committed in one transaction, then answered and broadcast."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from unisono.authority.answers import (
    COMMITTED_FORMAT,
    batch_outcome,
    committed_result,
    duplicate_outcome,
    rejected_outcome,
    rejected_result,
)
from unisono.authority.atomic import ATOMIC_S, judge_atomic
from unisono.authority.client_claims import ClientClaims
from unisono.authority.clock import Clock
from unisono.authority.judge import COMMIT, Duplicate, Reject, judge
from unisono.authority.outboxes import Outboxes
from unisono.authority.recent_activity import RecentGroup
from unisono.authority.replica import Replica
from unisono.ipc.channel import Channel
from unisono.ipc.messages import AskHead, Candidate, Claim, Dropped, EventCommitted, Message, Submit
from unisono.ipc.stats import SECONDS_BUCKETS, SIZE_BUCKETS, Counters
from unisono.ipc.tracing import Tracer
from unisono.protocol.codec import EVENT_FORMAT, encode_names
from unisono.store.port import Behind, CommitLog, Opening, Record, RememberedId

_encode = msgspec.json.Encoder().encode


class GroupCommitter:
    """Commits groups. Nothing of a group is sent before it is durable (SUBMIT-07).

    Messages that are not submissions are passed to `handle` at their place between the submissions, with the head at
    that place, so that everything a connection receives is in commit order (BCAST-06, SYNC-06).
    """

    def __init__(
        self,
        store: CommitLog,
        replica: Replica,
        claims: ClientClaims,
        outboxes: Outboxes,
        counters: Counters,
        *,
        clock: Clock,
        perf: Callable[[], float],
        handle: Callable[[Channel, Message, int], None],
        group_s: float,
        request_s: float,
        atomic_s: float = ATOMIC_S,
        tracer: Tracer | None = None,
    ) -> None:
        """`group_s`: judging time after which no further request is begun in a group; `request_s`: judging time
        after which the rest of a request moves to the next group; `atomic_s`: after which an atomic batch, which
        cannot be divided, is refused."""
        self._store = store
        self._replica = replica
        self._claims = claims
        self._out = outboxes
        self._counters = counters
        self._clock = clock
        self._perf = perf
        self._handle = handle
        self._group_s = group_s
        self._request_s = request_s
        self._atomic_s = atomic_s
        self._tracer = tracer
        self._partial_results: dict[int, list[bytes]] = {}
        self.count = 0

    def commit(
        self, taken: Sequence[tuple[Channel, Message]], events: int
    ) -> Sequence[tuple[Channel, Message]]:
        """Judge and commit a group of `events` items; returns what is left for another group."""
        started = self._perf()
        self.count += 1
        replica = self._replica
        submits: list[Submit] = []
        claims: list[Claim] = []
        heads = False
        for _, message in taken:
            if isinstance(message, Submit):
                submits.append(message)
            elif isinstance(message, Claim):
                claims.append(message)
            else:
                heads = heads or isinstance(message, AskHead)
        ids = [item.id for submit in submits for item in submit.items if isinstance(item, Candidate)]
        replica.cluster.claim(claims)
        known: dict[str, RememberedId | Record] = {}
        if ids:
            opening = self._open(ids, submits)
            if opening is None:
                return taken
            known.update(opening.known)
        elif heads or claims:
            replica.catch_up(fresh=True)
        now = self._clock()
        records: list[Record] = []
        left: list[tuple[Channel, Message]] = []
        judging = self._perf()
        tracer = self._tracer
        judging_ns = 0 if tracer is None else tracer.now_ns()
        try:
            for place, (channel, message) in enumerate(taken):
                if not isinstance(message, Submit):
                    self._handle(channel, message, replica.head + len(records))
                    continue
                if place and self._perf() - judging > self._group_s:
                    left = list(taken[place:])
                    break
                rest = self._judge(channel, message, known, records, now)
                if rest is not None:
                    left = [(channel, rest), *taken[place + 1 :]]
                    break
            replica.states.judged()
            judged = self._perf()
            if records:
                committing_ns = 0 if tracer is None else tracer.now_ns()
                self._store.commit(records)
                if tracer is not None:
                    tracer.committed([(r.id, r.committed_id) for r in records], judging_ns, committing_ns)
            elif ids:
                self._store.abandon()
        except BaseException:
            replica.states.rollback()
            raise
        replica.states.settle()
        replica.head += len(records)
        if records:
            durable = self._perf()
            replica.recent.note_group(
                RecentGroup(
                    records[0].committed_id,
                    replica.head,
                    now,
                    judging - started,
                    judged - judging,
                    durable - judged,
                    started,
                )
            )
        events -= sum(len(message.items) for _, message in left if isinstance(message, Submit))
        if events:
            self._counters.observe("group_events", events, SIZE_BUCKETS)
            self._counters.observe("commit_seconds", self._perf() - started, SECONDS_BUCKETS)
            self._counters.add("commits", len(records))
        self._out.flush()
        return left

    def discard_partial_results(self) -> None:
        """Forget requests that were judged in part: their connections are closed."""
        self._partial_results.clear()

    def _open(self, ids: Sequence[str], submits: Sequence[Submit]) -> Opening | None:
        """Begin a transaction and apply what other nodes did before it; None when the model has changed since."""
        replica = self._replica
        replica.cluster.fence(submits)
        opening = self._begin(ids)
        replica.apply(opening.foreign, opening.replaced)
        if not replica.is_newer_model(opening.model_version):
            return opening
        self._store.abandon()
        replica.adopt_published_model()
        return None

    def _begin(self, ids: Sequence[str]) -> Opening:
        """Begin a transaction. A node that is far behind first applies and broadcasts what it missed, in parts."""
        while True:
            try:
                return self._store.begin(ids)
            except Behind as behind:
                self._replica.apply_and_send(behind.records)

    def _judge(
        self,
        channel: Channel,
        submit: Submit,
        known: dict[str, RememberedId | Record],
        records: list[Record],
        now: int,
    ) -> Submit | None:
        """Judge a request and stage its answer; returns the rest of a request that takes longer than `request_s`.

        The items judged so far become durable with this group. The answer is sent when all of them are (SUBMIT-07).
        """
        results = self._partial_results.pop(submit.conn, [])
        if not self._claims.has(submit.client_id, submit.conn):
            # Replaced while it waited (CONN-05): the client retries on its newer connection.
            self._out.stage(channel, Dropped(submit.conn))
            return None
        perf, single, profile, client_id = self._perf, submit.single, submit.profile, submit.client_id
        states, stage_for_all, conn = self._replica.states, self._out.stage_for_all, submit.conn
        author = submit.author
        authorship = states.authorship(client_id, author, now)
        client_json = _encode(client_id)
        head = self._replica.head
        started = perf()
        verdicts = None
        if submit.atomic:
            verdicts = judge_atomic(
                submit.items, profile, known, states, authorship, lambda: perf() - started > self._atomic_s
            )
        latest = started + self._request_s
        for place, item in enumerate(submit.items):
            if verdicts is not None:
                verdict = verdicts[place]
            elif place and perf() > latest:
                self._partial_results[conn] = results
                return msgspec.structs.replace(submit, items=submit.items[place:])
            else:
                verdict = judge(item, profile, known, states.stage, authorship)
            if verdict is COMMIT:
                assert isinstance(item, Candidate)
                id, partitions, event = item.id, item.partitions, item.event
                committed_id = head + len(records) + 1
                record = Record(committed_id, id, client_id, partitions, event, item.hash, now, author)
                records.append(record)
                known[id] = record
                id_json = _encode(id)
                payload = EVENT_FORMAT % (
                    id_json, client_json, encode_names(partitions), committed_id, event, now,
                )  # fmt: skip
                stage_for_all(EventCommitted(committed_id, conn, partitions, payload, single, author))
                if not single:
                    results.append(COMMITTED_FORMAT % (id_json, now, committed_id))
            elif isinstance(verdict, Reject):
                self._counters.add(f"rejections|{verdict.reason}")
                self._replica.recent.note_refusal(submit, item, verdict, now)
                if single:
                    self._out.stage(channel, rejected_outcome(submit, item, verdict, now))
                else:
                    results.append(rejected_result(item.id, now, verdict))
            else:
                assert isinstance(verdict, Duplicate)
                self._counters.add("duplicates")
                first = verdict.known
                if single:
                    assert isinstance(item, Candidate)
                    self._out.stage(channel, duplicate_outcome(submit.conn, item, verdict))
                else:
                    results.append(committed_result(item.id, first.status_updated_at, first.committed_id))
        if not single:
            self._out.stage(channel, batch_outcome(submit.conn, results))
        return None
