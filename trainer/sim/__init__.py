"""The simulated engine: GRPO on a policy that is a table, for studying methods in seconds."""
