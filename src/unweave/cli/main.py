"""``unweave``: finds the command, runs it, and turns what happened into an exit code.

| code | meaning                                                                          |
|------|----------------------------------------------------------------------------------|
| 0    | done                                                                             |
| 1    | an error of ours, with its remedy on stderr                                      |
| 2    | wrong usage: correct the command or its settings                                 |
| 3    | the target was not reached, or the model was rolled back; an audit says fail     |
| 4    | an audit cannot tell: inconclusive                                               |
| 130  | interrupted with Ctrl-C; nothing was changed, but for the sums of fit --resume   |
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from unweave import __version__
from unweave.cli.configfile import did_you_mean
from unweave.cli.ranks import is_first, joined, on_rank
from unweave.errors import ConfigError, RankError, UnweaveError, UnweaveWarning
from unweave.starting import UNCHANGED

COMMANDS = (
    ("init", "unweave.cli.init"),
    ("fit", "unweave.cli.fit"),
    ("forget", "unweave.cli.forget"),
    ("audit", "unweave.cli.audit"),
    ("report", "unweave.cli.report"),
    ("demo", "unweave.cli.demo"),
    ("reproduce", "unweave.cli.reproduce"),
    ("bench", "unweave.cli.bench"),
)
"""Name and module; a module is imported only when its command or the list of all commands is asked for, and a
command whose module is not there is not listed."""

DESCRIPTION = "Take training samples back out of a trained PyTorch network, without the training set."

NO_SUCH_FILE = (FileNotFoundError, IsADirectoryError, NotADirectoryError)

EPILOG = """\
the flow:
  unweave init                        write a commented unweave.toml; fill it in
  unweave fit                         once, after training: add up what each layer sees
  unweave forget --ids requests.txt   any time later: a new model without those samples
  unweave audit --ids requests.txt    does it look as if it had never seen them?
  unweave report audit.json           the same as a page for people

fit and forget also run on several processes:
  torchrun --nproc-per-node 8 -m unweave fit

exit codes: 0 done, 1 error, 2 wrong usage, 3 target not reached or an audit that fails, 4 an audit that cannot tell,
130 interrupted
'unweave COMMAND --help' explains a command with an example."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. An error that is not one of ours keeps its traceback."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        arguments = _parsed(words)
        with joined(arguments.command), _plain_warnings():
            code = int(arguments.run(arguments))
            sys.stdout.flush()
            return code
    except BrokenPipeError:  # who reads along has seen enough; what was to be written is written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except SystemExit as leaving:  # argparse leaves this way: 0 after --help and --version, 2 on wrong usage
        return leaving.code if isinstance(leaving.code, int) else 2
    except UnweaveError as error:
        if "--debug" in words:
            traceback.print_exc()
        if is_first() or not (isinstance(error, RankError) and error.told is not None):
            print(f"unweave: error{on_rank()}: {error}", file=sys.stderr)
        return code_of(error)
    except KeyboardInterrupt as interrupt:  # a command that leaves something behind says so in it
        print(f"unweave: interrupted; {str(interrupt) or UNCHANGED}.", file=sys.stderr)
        return 130


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Warnings of the library's own as one line on stderr, without the place in its code."""
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, UnweaveWarning):
            print(f"unweave: warning: {message}", file=sys.stderr)
        else:
            usual(message, category, *place, **more)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = usual


def code_of(error: UnweaveError) -> int:
    """2 where the command or its settings are to be corrected: a ConfigError, or no such file as they name; else 1."""
    return 2 if isinstance(error, ConfigError) or isinstance(error.__cause__, NO_SUCH_FILE) else 1


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    """What the words say; leaves with exit code 2, the usage of the command and a guess where one is not known."""
    arguments, strange = _parser(words).parse_known_args(words)
    if strange:
        flags = [word.partition("=")[0] for word in strange if word.startswith("--")]
        guesses = "".join(did_you_mean(flag, arguments.parser._option_string_actions) for flag in flags)
        arguments.parser.error(f"unrecognized arguments: {' '.join(strange)}.{guesses}")
    return arguments


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """The parser, with only the chosen command's module loaded; with all of them where none was chosen."""
    chosen = next((word for word in words if not word.startswith("-")), None)
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("unweave", description=DESCRIPTION, epilog=EPILOG, formatter_class=formatter)
    parser.add_argument("--version", action="version", version=f"unweave {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    there = {name: path for name, path in COMMANDS if importlib.util.find_spec(path)}
    for name, path in there.items():
        if chosen == name or chosen not in there:
            _add(commands, name, importlib.import_module(path))
    return parser


def _add(commands: Any, name: str, module: Any) -> None:
    parser = commands.add_parser(
        name,
        help=module.HELP,
        description=module.HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        conflict_handler="resolve",
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    module.add_arguments(parser)
    parser.set_defaults(run=module.run, parser=parser, command=name)


if __name__ == "__main__":
    sys.exit(main())
