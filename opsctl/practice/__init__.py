"""A host to practise on: an SSH server and a stand-in for SGLang, on this machine, below one temporary folder."""
