"""Stand-in for decord, whose video readers SGLang imports for the models that see."""

from placeholder import names_of

__getattr__ = names_of(__name__)
