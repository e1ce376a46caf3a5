"""Imports history from elsewhere into a log: read, decide, load.

job             one import from start to end
sources         finds the files, and splits them
json_lines, tabular, insieme_file   read the rows of a split, by format
rows            one row → an event as the server stores it, or the reason for its rejection
read_split      the task that does this for a split
judge           the model's decision on an event, in order
decide          duplicates, conflicts and judgement of all rows, on Spark
prepare         staged and rejected rows, and their counts
staging         the working directory between two runs
rejects_table, outcomes, result     the rejected rows, and the report
"""
