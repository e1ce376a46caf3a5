"""History in bulk, on Spark: the log as a data source, and its exact copy in a lake of Delta tables.

Nothing outside this package imports PySpark, and nothing here is imported by the server.
"""
