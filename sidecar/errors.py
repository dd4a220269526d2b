"""Mistakes a user can make: one clear line, exit code 2, never a traceback."""


class UserError(Exception):
    """Something the user can put right. The message names the file, key or line and what would be right."""


class SettingsError(UserError):
    """A settings or SLO file, flag or environment variable is wrong."""
