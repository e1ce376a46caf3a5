"""Bugs, put into the product's code while a simulation runs: each breaks a promise, and the checker has to see it."""

from tests.simulation.mutants import commits, delivery
from tests.simulation.mutants.registry import MUTANTS, applied

__all__ = ["MUTANTS", "applied", "commits", "delivery"]
