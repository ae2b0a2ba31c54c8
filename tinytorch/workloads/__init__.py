"""Models with trained weights and the data that they are trained and judged on."""
