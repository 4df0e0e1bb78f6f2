"""EAGLE-3 draft model checkpoints: reading, judging, comparing, converting. Plain functions on plain data."""
