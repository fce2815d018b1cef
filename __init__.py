"""HarnessRL: GRPO under a training-time harness that co-evolves with the policy."""

__version__ = "0.1.0"
