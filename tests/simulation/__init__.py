"""The whole system in one process under a seeded scheduler: front, authority, reader, SQLite, clients.

Time, network, disk and the order of everything are decided by one random source, so a seed replays exactly. What is
simulated is the world around the product: event loops, sockets, channels, files. The product's code is the real one.
"""
