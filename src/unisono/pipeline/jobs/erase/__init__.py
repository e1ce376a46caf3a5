"""Erases the content of events: selects them, rewrites files, and proves that nothing is left.

job                the steps in order; killed anywhere, it is run again
select             which events: by client, user, id or partition
erasure_table      the record of what is erased, written before anything else
rewrite            files of the lake with tombstones in place of events
snapshots          snapshots of the lake whose states had the content
delete_files       old files, after every reader has moved on
all_files          every file below the lake, named by a table or not
fragments          what content looks like in a file: the texts to look for
search             looks for them in every file
proof              the log, the lake and its files have nothing left
unproved           what could not be read, and therefore not proved
certificate        what was asked, erased, searched and found, as a document
old_reports        reports made before, which may quote the content
"""
