"""Can't even start: what it imports doesn't exist."""

import a_module_that_nobody_wrote  # type: ignore[import-not-found]  # noqa: F401
