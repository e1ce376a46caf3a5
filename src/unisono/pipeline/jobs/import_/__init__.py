"""Bringing history from elsewhere into a log: read, judge, put in order, load.

sources   which files there are, how they are cut into splits
jsonl, tabular, insieme   rows of a split, in each format
rows      one row → an event as the server would store it, or the reason why not
reading   the task that does this for a split
judging   what the model says of an event, in order
deciding  duplicates, conflicts and judgement of all rows, on Spark
staging   where the work is kept between two runs
rejects, report   what is told
job       one import from start to end
"""
