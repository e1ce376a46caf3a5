"""Load in processes of their own: raw sockets, messages that are made beforehand, and a count of their own CPU time.

A generator reads its `Order` as one line of JSON, opens its connections, prints `ready`, waits for a line, and prints
what it counted (`Counted`). Several generators begin together because their parent writes that line to all of them.
"""
