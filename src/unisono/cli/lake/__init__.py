"""`unisono lake …`: the history in bulk, on Spark. PySpark is imported by a command when it runs, never before."""

from __future__ import annotations

from typing import Final

import click

from unisono.cli.lazy import Lazy

COMMANDS: Final = {
    "export": "lake.export:export_",
    "compact": "lake.compact:compact_",
    "info": "lake.info:info_",
    "snapshot": "lake.snapshot:snapshot_",
    "state": "lake.state:state_",
    "diff": "lake.diff:diff_",
    "audit": "lake.audit:audit_",
    "retain": "lake.retain:retain_",
    "erase": "lake.erase:erase_",
    "certificate": "lake.certificate:certificate_",
    "import": "lake.import_:import_",
    "revalidate": "lake.revalidate:revalidate_",
    "report": "lake.report:report_",
    "views": "lake.views:views_",
    "run": "lake.run:run_",
}


@click.group(cls=Lazy, commands_at=COMMANDS)
def lake() -> None:
    """Copy the log into a lake of Delta tables, and work on the history there.

    Needs the extra `pipeline` (docs/install.md) and Java 17. Exit codes of all commands: 0 done,
    1 started but not completed, 2 cannot be done with these options or in this environment.
    """
