"""What a PRM is good for: benchmarks, best-of-N, calibration, robustness, with intervals."""
