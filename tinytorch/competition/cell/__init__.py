"""The cell: contenders in confined processes of their own, and how they are asked."""
