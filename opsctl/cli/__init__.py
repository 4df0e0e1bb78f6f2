"""The command line: arguments, exit codes, and which view is shown. Knows nothing of SSH or of what a module does."""
