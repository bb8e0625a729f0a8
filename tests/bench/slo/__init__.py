"""`make bench-slo`: what each way of setting an engine's knobs makes of the same load."""
