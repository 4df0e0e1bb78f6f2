"""Server logs: timelines, errors and what they mean, bundles."""
