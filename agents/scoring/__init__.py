"""From responses to verdicts, rewards, quality and diagnosis. Never imports the evolver."""
