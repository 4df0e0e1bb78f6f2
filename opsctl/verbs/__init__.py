"""What a front end can ask for, each once: choose hosts, connect, then a domain's use case or a playbook.

Values in, values out. What there is to say meanwhile goes to the `Frontend` that asks: a terminal, an assistant, a
script. Nothing here prints.
"""
