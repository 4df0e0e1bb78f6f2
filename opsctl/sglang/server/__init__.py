"""Running servers: their command lines, their HTTP interface, what they tell of themselves."""
