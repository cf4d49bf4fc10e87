"""The command line: one file a command, each with ``HELP``, ``add_arguments(parser)`` and ``run(arguments)``.

A command's file imports nothing heavy at its top, so that ``unweave --help`` answers at once; what needs torch is
imported inside ``run``.
"""
