"""Roles behind OpenAI-compatible endpoints: judge, oracle, evolver."""
