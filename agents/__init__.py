"""Scoring (checks, judge, reward, oracle, diagnosis) and the harness evolver with its critic."""
