"""``shardwright doctor``: is this machine ready, and what to do where it is not."""

from __future__ import annotations

import typer

from shardwright.cli import _options


def doctor(as_json: _options.Json = False) -> None:
    """Check Python, torch, memory, disk, network and a small collective on this machine."""
    from shardwright.cli import _checks, _output

    with _output.progress("checking") as advance:
        checks = []
        for number, check in enumerate(_checks.CHECKS):
            advance(check.__name__.replace("_", " "), number / len(_checks.CHECKS))
            checks.append(check())
    failed = any(check.status == "fail" for check in checks)
    if as_json:
        _output.print_json({"ok": not failed, "checks": [check.as_json() for check in checks]})
    else:
        out = _output.console()
        for check in checks:
            out.print(f"{check.status:4}  {check.name:10}  {check.detail}", soft_wrap=True)
            if check.fix is not None:
                out.print(f"{'':16}  to fix: {check.fix}", soft_wrap=True)
    if failed:
        raise typer.Exit(2)
