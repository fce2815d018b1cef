"""The engine `openrlhf`: what `harnessrl launch` starts, and how."""
