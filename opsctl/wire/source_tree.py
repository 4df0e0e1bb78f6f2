"""Where SGLang's package lies in a source tree."""

PREFIXES = ("python/sglang", "sglang", "")  # a checkout, site-packages or an unpacked wheel, the package itself
