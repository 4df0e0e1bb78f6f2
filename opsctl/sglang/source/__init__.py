"""Source trees of SGLang, read by syntax."""
