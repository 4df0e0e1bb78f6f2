"""SGLang source trees on the host: read, searched, patched."""
