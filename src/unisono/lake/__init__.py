"""The lake's tables and files, read and written without Spark: for the pipeline's executors, and for cold reads.

Needs pyarrow and deltalake, so nothing here is imported before a lake is named.
"""
