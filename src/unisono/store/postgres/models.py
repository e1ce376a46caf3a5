"""Models in the shared log: one is in force for all nodes, and only a newer one replaces it."""

from __future__ import annotations

import msgspec

from unisono.store.cluster import ModelBundle, ModelRefused
from unisono.store.postgres.pipeline_connection import PipelineConnection

_decode_files = msgspec.msgpack.Decoder(dict[str, bytes]).decode


def published(pipeline: PipelineConnection) -> ModelBundle | None:
    """The model in force."""
    for version, digest, files in pipeline.ask("published_model"):
        return ModelBundle(version, digest, _decode_files(files))
    return None


def publish(pipeline: PipelineConnection, bundle: ModelBundle, node: str) -> None:
    """Put `bundle` in force between two groups; publishing the one in force changes nothing."""
    pipeline.control("BEGIN")
    pipeline.send("lock_head")
    present = published(pipeline)
    if present is not None and bundle.version <= present.version:
        pipeline.release_locks()
        if (present.version, present.digest) == (bundle.version, bundle.digest):
            return
        edited = f" with another content (digest {present.digest[:12]}, this one {bundle.digest[:12]})"
        raise ModelRefused(
            f"model version {bundle.version} is not newer than {present.version}, which is in force in the cluster"
            f"{edited if present.version == bundle.version else ''}: give the changed model a higher version"
        )
    files = msgspec.msgpack.encode(bundle.files)
    pipeline.send(
        "insert_model", {"version": bundle.version, "digest": bundle.digest, "files": files, "node": node}
    )
    pipeline.send("set_model_in_force", {"version": bundle.version})
    pipeline.control("COMMIT")
    pipeline.sync()
