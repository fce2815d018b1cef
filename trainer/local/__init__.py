"""Engine `local`: GRPO in one process with torch, on a CPU or one GPU."""
