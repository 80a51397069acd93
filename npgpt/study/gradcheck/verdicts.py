"""The verdicts on a gradient dv, and the words for lines that have none."""

OK, WRONG, FUSED, CONSTANT, OTHER, ROUNDED = "ok", "WRONG", "fused", "constant", "other", "rounded"
FOLLOWS = "follows"  # in an exercise: it is computed from a wrong one
UNNAMED = "no dv"
NOT_FOUND = "no gradient found"
NO_GRADIENT = "no gradient: must be frozen"
ARGUMENT = "(argument)"
