"""Mistakes a user can make: one clear line, exit code 2, never a traceback."""

_LONGEST = 1500


class UserError(Exception):
    """Something the user can put right. The message names the file, key or line and what would be right.

    What it repeats of a user's file may be of any size: the middle of a long message is left out.
    """

    def __str__(self) -> str:
        message = super().__str__()
        if len(message) <= _LONGEST:
            return message
        return f"{message[: _LONGEST - 500]} ... {message[-400:]}"


class SettingsError(UserError):
    """A settings or SLO file, flag or environment variable is wrong."""
