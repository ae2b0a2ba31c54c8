"""The judge: heats, what is measured in them, and what is looked for."""
