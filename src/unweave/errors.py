"""One tree of errors, named by what the user can do about them.

Every message names the thing that is wrong and the remedy, in that order. Each class also derives from the built-in
error a Python programmer would expect, so that ``except ValueError`` keeps working.
"""


class UnweaveError(Exception):
    """The root of every error raised on purpose by this package.

    ``remedy`` is the end of the message where that is in words of Python: the command line, which knows better ones,
    puts them in its place with :meth:`advise`.
    """

    def __init__(self, message: str = "", *, remedy: str = "") -> None:
        super().__init__(f"{message} {remedy}" if remedy else message)
        self.remedy = remedy

    def advise(self, remedy: str) -> None:
        """Name another remedy, if this error has one that can be replaced."""
        if self.remedy:
            self.args = (str(self).removesuffix(self.remedy) + remedy,)
            self.remedy = remedy


class DataError(UnweaveError, ValueError):
    """The loader, a batch or its labels cannot be used: change the data."""


class ModelError(UnweaveError, ValueError):
    """The model cannot be used as it is: change the model or the way it is called."""


class LayerError(UnweaveError, ValueError):
    """A layer cannot be handled: leave it out with ``layers=``, change it, or register its type."""


class MismatchError(UnweaveError, ValueError):
    """Two things do not belong together, for example Grams and a model: bring the ones that do."""


class ConfigError(UnweaveError, ValueError):
    """A setting is out of range or unknown: change the setting."""


class UnknownNameError(ConfigError, KeyError):
    """A name that is not one of those there are: choose one of these."""

    def __str__(self) -> str:  # a KeyError would show the message in quotes
        return Exception.__str__(self)


class LayerChoiceError(LayerError, ConfigError):
    """A setting names a layer that is not there, or chooses none: change the setting."""


class StoreError(UnweaveError, OSError):
    """A file cannot be read or written, or is not what it claims to be: nothing was changed."""


class RankError(UnweaveError, RuntimeError):
    """Another process of the job failed or is gone: see what it says, and start the job again.

    ``told`` is the rank that has said why; None where nobody has.
    """

    def __init__(self, message: str, told: int | None = None) -> None:
        super().__init__(message)
        self.told = told


class UnweaveWarning(UserWarning):
    """What makes a later request inexact though nothing is wrong with the work now. The message names the remedy."""
