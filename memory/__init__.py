"""The run's memory: records, the append-only event log (source of truth) and a Chroma index over it."""
