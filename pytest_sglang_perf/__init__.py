"""Performance hypotheses about an SGLang deployment, written and judged as pytest tests."""
