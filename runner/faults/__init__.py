"""Faults injected on purpose, and the records of all that happened. Nothing here is imported by itself."""
