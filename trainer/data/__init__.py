"""Reading tasks: YAML task files, and JSONL rows of public sets in their own schemas."""
