"""Faults on real processes under recorded load; `unisono.history` judges every run. `soak/` runs them longer."""
