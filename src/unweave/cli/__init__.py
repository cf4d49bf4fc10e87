"""The command line: one file a command, each with ``HELP``, ``add_arguments(parser)`` and ``run(arguments)``.

A command's file imports nothing heavy at its top; what needs rich, numpy or an audit's libraries is imported inside
``run``. PyTorch is loaded all the same, by ``unweave`` itself: ``fit`` and ``forget`` are functions there and modules
too, so the functions have to be bound when the package is imported. Bound later, ``unweave.fit`` would be
the one or the other, depending on what was imported before.
"""
