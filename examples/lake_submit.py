"""`unisono lake …` for spark-submit: it chooses the master and ships the package, see docs/pipeline.md.

spark-submit --master spark://HOST:7077 --py-files unisono.zip examples/lake_submit.py export --store … --lake …
"""

from unisono.cli.lake import lake

lake(prog_name="unisono lake")
