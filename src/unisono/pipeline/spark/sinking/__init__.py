"""A task of the sink: converts rows to items, gets tokens, and submits to the server."""
