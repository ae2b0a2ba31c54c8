"""Results as one HTML file that works offline, from a mail attachment."""
