"""Training: `loop` first, then `adamw`, `schedule`, and the `trainer` with all that a real run
needs.
"""
