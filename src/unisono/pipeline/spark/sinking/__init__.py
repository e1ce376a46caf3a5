"""What a task of the sink does: rows to items, tokens, and the exchange with the server."""
