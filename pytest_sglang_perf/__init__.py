"""Performance hypotheses about an SGLang deployment, written and judged as pytest tests."""

__version__ = "0.1.0"
