"""Turning finished results into what people look at. Nothing is computed here."""
