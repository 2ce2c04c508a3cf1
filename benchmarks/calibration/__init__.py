"""How often the verdicts are wrong, and how often they answer: Monte Carlo on draws whose truth is known."""
