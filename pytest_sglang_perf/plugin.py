"""pytest hooks and options; imports nothing heavy until a perf test is collected."""
