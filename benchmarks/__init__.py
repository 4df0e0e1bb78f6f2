"""Side-by-side benchmarks: opsctl and its peers, on the same hosts, in the same run. Reported as ratios."""
