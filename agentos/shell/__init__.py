"""Reads shell commands: which programs a line for bash starts, and which files it is redirected to.

:func:`.reader.parse_text` answers with :class:`.reading.Commands` for a line of simple commands, and with
:class:`.reading.Opaque` for any other text. It knows nothing of permissions.
"""
