"""Evaluation: what a policy is worth on tasks that it was never trained on."""
