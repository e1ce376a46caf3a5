"""Erases the content of events: selects them, rewrites files, and proves that nothing is left."""
