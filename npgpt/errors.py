"""What npgpt raises when its user, and not its code, has to change something."""


class UserError(ValueError):
    """One sentence that says what is wrong and what to do. The commands print it alone and exit with code 2."""
