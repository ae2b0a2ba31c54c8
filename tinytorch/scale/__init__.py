"""Beyond one process: trials on Ray, and training steps over many ranks."""
