"""Files and folders: looked at, changed, put back."""
