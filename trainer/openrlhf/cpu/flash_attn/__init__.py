"""Stands in for flash-attn, which needs a GPU. OpenRLHF uses it for packed samples only."""
