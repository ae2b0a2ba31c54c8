"""Records on disk: the store, its exchange format, trends and change points."""
