"""Errors of images."""


class BadArchive(Exception):
    """No image can be made of an archive; the text names the entry, and says why and what to do."""


class BadStore(Exception):
    """The store can't be used, or an image in it; the text says why and what to do."""


class NoImage(Exception):
    """The store has no image of this name; the text says what to do."""
