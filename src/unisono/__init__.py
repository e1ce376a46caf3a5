"""Unisono: authoritative, offline-first event sync that speaks the Insieme protocol."""

__version__ = "0.1.0"
