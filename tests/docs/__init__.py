"""README.md and docs/ are run: every fenced block of every page, top to bottom, in a directory of the page's own.

What a block's language means (a language that isn't listed fails, so that no block goes unchecked):

``console``
    ``$ COMMAND`` (continued by ``> ``) is run by one bash per page; the lines below are what it writes, to
    stdout or to stderr. One that writes to both fails: in which order the two arrive nothing promises.
    ``$ agentos run`` is the page's kernel: it stays, and each line shown must come, in any order. A block that begins
    with ``^C`` interrupts it; one without any prompt shows more of its output. Commands that only look (``ps``,
    ``tree``, ``logs``, ``events``) are repeated until they show what the page shows, for a while.
``bash``
    A script that must succeed. ``make`` only says what it would do, in both.
``python`` ``toml`` ``perl`` ``ini``
    A first line ``# NAME`` makes it that file. Without one, Python is run as a client of the page's kernel, and must
    succeed; TOML is ``agentos.toml``. TOML must be a right configuration file (``# wrong.toml``: a wrong one), or
    rules of the offline provider; agents' scripts that the page doesn't have are made, empty.
``json``
    Must be JSON.
``yaml``
    Configuration of Prometheus: what it would scrape is served by the page's kernel, and what it asks for is there.
``text``
    Drawings and formats, the only kind that isn't run; it has no prompt in it.

In expected output ``...`` stands for anything, as a line of its own for any lines. Not compared: clock times, numbers
of two digits or more, decimals, durations such as ``12s``, ids, pids and boots, and how many spaces there are. The
page's directory is shown as ``/home/ada``, its runtime directory as ``/run/user/1000``.

A page that begins no kernel gets one when it first needs it. Pages of one directory stand on the blocks of the
directory's README.md where ``STANDS_ON`` of ``test_pages.py`` says so. Pages of calls that change nothing share one
kernel (``ONLY_LOOK``), those that change only what is theirs another (``CHANGE_OWN``). Kernels, commands and clients
are forked from a process that has imported them, but for ``EXECUTED``.
"""
