"""The agent itself: frames, calls, journal, locks, whose rights it takes."""
