"""Remote ops for SGLang with EAGLE-3 speculative decoding on GPU hosts reached by SSH."""

__version__ = "0.1.0"
