"""Systems side by side: workloads, interleaved rounds, medians and ratios, tables and pictures."""
