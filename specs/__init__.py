"""What people write (YAML) and what it means: tasks, criteria, updates, harness state, sampling.

Nothing here imports torch, LangGraph or Chroma; every other package imports from here.
"""
