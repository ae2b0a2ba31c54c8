"""The command line: one module per command.

A command is a row in ``COMMANDS`` of :mod:`tinytorch.cli.main` and a module with two functions:

``add_arguments(parser: argparse.ArgumentParser) -> None``
    Add the arguments of this command. ``--json``, ``--quiet`` and ``--seed`` are there already.
``run(options: argparse.Namespace, output: Output) -> ExitCode``
    Call the verb, hand its result to ``output.result`` and return what it means. Errors are
    raised, never printed: :mod:`tinytorch.cli.main` turns them into a line and an exit code.

The module is imported only when its command was asked for, so ``tinytorch --help`` is fast.
"""
