"""GPU hosts: what nvidia-smi, the kernel log and /sys say, and what it means. Plain functions on plain data."""
