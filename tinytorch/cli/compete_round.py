"""``tinytorch compete round``: a secret seed, committed to before a round and revealed after it."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tinytorch.cli.console import ExitCode, Output
from tinytorch.cli.options import add_common_options
from tinytorch.errors import SettingError

if TYPE_CHECKING:
    from tinytorch.competition.rounds import Round

STEPS = {
    "new": "draw a secret seed and publish its commitment",
    "reveal": "publish the seed after the round",
    "show": "show a round without its seed",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    steps = parser.add_subparsers(title="steps", dest="step", metavar="STEP", required=True)
    made = {}
    for name, summary in STEPS.items():
        made[name] = steps.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            allow_abbrev=False,
        )
        add_common_options(made[name], is_inner=True)
    _add_new(made["new"])
    made["reveal"].add_argument("secret", type=Path, metavar="SECRET", help="the secret file")
    _add_folder(made["reveal"])
    made["show"].add_argument("file", type=Path, metavar="FILE", help="the file of a round")


def _add_new(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="letters, digits and dashes")
    _add_folder(parser)
    parser.add_argument(
        "--secret",
        type=Path,
        metavar="FILE",
        help="file for the seed (default: ./NAME.SECRET.json), outside of the submissions folder",
    )
    parser.add_argument(
        "--key",
        type=Path,
        metavar="FILE",
        help="key that signs the verified records of this round",
    )


def _add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--to", type=Path, required=True, metavar="FOLDER", help="the submissions folder"
    )


def run(options: argparse.Namespace, output: Output) -> ExitCode:
    return {"new": _new, "reveal": _reveal, "show": _show}[options.step](options, output)


def _new(options: argparse.Namespace, output: Output) -> ExitCode:
    from tinytorch.competition.rounds import new_round, secret_file_name

    made = new_round(options.name, public_key=_public_key(options.key))
    secret = options.secret or Path(secret_file_name(made.name))
    public = _public_file(options.to, made)
    if secret.resolve().is_relative_to(options.to.resolve()):
        raise SettingError(
            f"{secret} is in the submissions folder, which is public; pass another --secret"
        )
    if public.exists():
        raise SettingError(f"{public} exists already; choose another name")
    _write(made, secret)
    _write(made.public(), public)
    payload = {"round": made.public(), "public_file": public, "secret_file": secret}
    told = [
        f"round {made.name}",
        f"commitment   {made.commitment}",
        f"public file  {public}",
        f"secret file  {secret} (do not share it before the end of the round)",
    ]
    output.result(payload, "\n".join(told))
    return ExitCode.FINE


def _reveal(options: argparse.Namespace, output: Output) -> ExitCode:
    from tinytorch.competition.rounds import read_round

    found = read_round(options.secret)
    if found.seed is None:
        raise SettingError(f"{options.secret} has no seed; pass the secret file of the round")
    public = _public_file(options.to, found)
    known = _known(public)
    if known.commitment != found.commitment:
        raise SettingError(
            f"{public} is another round {found.name!r}, with another commitment; pass its secret "
            "file"
        )
    if known.is_revealed:
        output.say(f"{public} has the seed already")
    else:
        _write(found, public, is_revealed=True)
    told = f"round {found.name}: seed published in {public}\nseed  {found.seed}"
    output.result({"round": found, "public_file": public}, told)
    return ExitCode.FINE


def _show(options: argparse.Namespace, output: Output) -> ExitCode:
    from tinytorch.competition.rounds import read_round

    found = read_round(options.file)
    state = "in this file, matches the commitment" if found.is_revealed else "not in this file"
    told = [
        f"round {found.name}, of {found.created_at or 'an unknown time'}",
        f"commitment  {found.commitment}",
        f"seed        {state}",
        f"key         {found.public_key or 'none: verified records need no signature'}",
    ]
    payload = {"round": found.public(), "has_seed": found.is_revealed}
    output.result(payload, "\n".join(told))
    return ExitCode.FINE


def _known(public: Path) -> "Round":
    """Read the public file of a round, which holds the commitment."""
    from tinytorch.competition.rounds import read_round

    if not public.exists():
        raise SettingError(
            f"there is no {public}, which holds the commitment; pass the folder in which the round "
            "was created"
        )
    return read_round(public)


def _public_file(folder: Path, found: "Round") -> Path:
    from tinytorch.competition.rounds import public_file_name

    return folder / "rounds" / public_file_name(found.name)


def _public_key(path: Path | None) -> str:
    if path is None:
        return ""
    from tinytorch.competition.signing import read_key

    return read_key(path).public


def _write(found: "Round", path: Path, *, is_revealed: bool = False) -> None:
    from tinytorch.competition.rounds import write_round

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_round(found, path, reveal=is_revealed)
    except OSError as error:
        raise SettingError(f"{path} cannot be written: {error.strerror or error}") from error
