"""Taking what events said out of history: which ones, in which files, and the proof that it is gone."""
