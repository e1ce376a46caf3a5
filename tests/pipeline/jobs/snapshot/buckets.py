"""How many buckets the lakes of these tests have."""

from __future__ import annotations

BUCKETS = 4
