"""A run's evolver decisions in LangGraph Studio: a copy of the run, and a server on this machine."""
