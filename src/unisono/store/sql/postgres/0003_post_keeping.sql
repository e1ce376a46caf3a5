-- Events may leave the log from here on. A node that does not know 0002 looks for known ids in `events` alone and
-- would commit an event that has left a second time: with this applied no such node can start, and it is applied only
-- while none is alive. Nothing changes in the tables.
SELECT 1;
