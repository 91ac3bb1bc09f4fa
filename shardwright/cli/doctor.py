"""``shardwright doctor``: is this machine ready, and what to do where it is not."""

from __future__ import annotations

import typer

from shardwright.cli import _options


def doctor(as_json: _options.Json = False) -> None:
    """Check Python, torch, memory, disk, network and a small collective on this machine."""
    from shardwright.cli import _checks, _output

    found = []
    with _output.progress("checking") as progress:
        for number, (name, check) in enumerate(_checks.CHECKS.items()):
            progress(name, number / len(_checks.CHECKS))
            found.append(check())
    failed = any(each.status == "fail" for each in found)
    if as_json:
        _output.print_json({"ok": not failed, "checks": [each.as_json() for each in found]})
    else:
        for each in found:
            _output.print_lines(f"{each.status:4}  {each.name:10}  {each.detail}")
            if each.fix is not None:
                _output.print_lines(f"{'':16}  to fix: {each.fix}")
    if failed:
        raise typer.Exit(2)
