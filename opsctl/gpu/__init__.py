"""GPU hosts: read what their tools say, and judge whether they are fit to serve. Knows no SSH."""
