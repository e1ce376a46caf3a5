"""Unisono and other systems with a durable, ordered log, each behind one interface (`system.py`).

What differs between them, and what that means for a comparison, is in `docs/performance.md`.
"""
