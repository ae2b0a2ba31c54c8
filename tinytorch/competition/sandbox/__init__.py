"""The sandbox: contenders in separate confined processes, and how they are asked."""
