"""What stands before a training command: schedulers, MPI, containers, profilers, other hosts."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field

_PLAIN = frozenset(
    (
        "exec", "nohup", "time", "sudo", "setsid", "command", "builtin", "stdbuf", "nice", "ionice",
        "timeout", "taskset", "numactl", "nsys", "ncu", "env", "unbuffer", "catchsegv", "gdb",
        "dlprof", "rocprof", "rocprofv2", "rocprofv3", "chrt", "strace", "script", "eval", "xargs",
        "watch", "exec_with_retry", "ft_launcher_wrapper",
    )
)  # fmt: skip
"""They start one process, as it stands behind them."""

_LAUNCHING = frozenset(
    (
        "srun", "mpirun", "mpiexec", "mpiexec.hydra", "mpirun_rsh", "orterun", "prun", "horovodrun",
        "jsrun", "aprun", "flux", "docker", "podman", "nvidia-docker", "singularity", "apptainer",
        "enroot", "shifter", "sarus", "kubectl", "sbatch", "salloc", "bsub", "qsub", "ngc",
    )
)  # fmt: skip
_REMOTE = frozenset(("ssh", "pdsh", "clush", "pssh", "parallel-ssh", "ansible"))
_REMOTE_VALUES = frozenset(("-o", "-p", "-i", "-l", "-w", "-x", "-f", "-h", "-H", "-F", "-J", "-R"))
SHELLS = frozenset(("bash", "sh", "zsh", "dash", "ksh"))
_PROGRAM = re.compile(
    r"(?:python[\d.]*|torchrun|deepspeed|accelerate|ft_launcher|pypy\d?|coverage)"
    r"|.*\.(?:py|sh|bash|slurm|sbatch|job|sub)"
)
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_MENTIONED = re.compile(r"\b(?:python[\d.]*|torchrun|deepspeed|accelerate|bash|sh)\b|\.(?:py|sh)\b")


@dataclass(slots=True)
class Peeled:
    """A command and what it is wrapped in."""

    layers: list[tuple[str, ...]] = field(default_factory=list)
    """The words of each wrapper, from the outside in."""
    environment: dict[str, str] = field(default_factory=dict)
    text: str | None = None
    """Shell text that is run in place of words: ``bash -c``, ``ssh host``."""
    positional: tuple[str, ...] = ()
    """Arguments of that text: ``$1`` and on."""
    rest: tuple[str, ...] = ()
    """The command itself; for a shell script its path and arguments."""


def base(word: str) -> str:
    """The last part of a path."""
    return posixpath.basename(word)


def peeled(words: tuple[str, ...]) -> Peeled:
    """A command without its wrappers; ``rest`` is empty where no program is behind them."""
    found = Peeled()
    while words:
        name = base(words[0])
        assigned = _ASSIGNED.fullmatch(words[0])
        if assigned and found.layers:
            found.environment[assigned[1]] = assigned[2]
            words = words[1:]
        elif name in SHELLS:
            return _of_shell(found, words)
        elif name in _REMOTE:
            return _of_remote(found, words)
        elif name in _PLAIN or name in _LAUNCHING:
            place = _program_place(words)
            layer = words[:place]
            found.layers.append(layer)
            found.environment |= environment_of(layer)
            words = words[place:]
            if words and _is_text(words[0]):
                found.text = " ".join(words)
                return found
        else:
            found.rest = words if _is_program(words[0]) else ()
            return found
    return found


def _is_program(word: str) -> bool:
    name = base(word)
    return _PROGRAM.fullmatch(name) is not None


def _is_text(word: str) -> bool:
    """Whether one word is a whole command line."""
    return bool(re.search(r"\s", word.strip())) and _MENTIONED.search(word) is not None


def _program_place(words: tuple[str, ...]) -> int:
    """Where the wrapped program is; the end where there is none."""
    for place in range(1, len(words)):
        word = words[place]
        if word.startswith("-") or (_ASSIGNED.fullmatch(word) and place > 0):
            continue
        name = base(word)
        known = name in SHELLS or name in _REMOTE or name in _LAUNCHING or name in _PLAIN
        if known and not words[place - 1].startswith("--"):
            return place
        if _is_program(word) or _is_text(word):
            return place
    return len(words)


def _of_shell(found: Peeled, words: tuple[str, ...]) -> Peeled:
    """``bash -c TEXT args``, ``bash -lc TEXT`` or ``bash FILE args``."""
    for place in range(1, len(words)):
        word = words[place]
        if re.fullmatch(r"-[a-z]*c", word):
            found.text = words[place + 1] if place + 1 < len(words) else ""
            found.positional = words[place + 3 :]  # the word between is ``$0``
            return found
        if word in ("-o", "+o", "-O"):
            continue
        if not word.startswith(("-", "+")) and words[place - 1] not in ("-o", "+o", "-O"):
            found.rest = words[place:]
            return found
    return found


def _of_remote(found: Peeled, words: tuple[str, ...]) -> Peeled:
    """``ssh host command``: the command is text for the shell there."""
    place = 1
    while place < len(words) and words[place].startswith("-"):
        place += 2 if words[place] in _REMOTE_VALUES else 1
    if base(words[0]) == "ssh":
        place += 1
    found.layers.append(words[:place])
    found.text = " ".join(words[place:])
    return found


def environment_of(layer: tuple[str, ...]) -> dict[str, str]:
    """Variables that a wrapper sets: ``mpirun -x A=1``, ``docker -e A=1``, ``env A=1``."""
    found: dict[str, str] = {}
    name = base(layer[0])
    for place, word in enumerate(layer[1:], 1):
        following = layer[place + 1] if place + 1 < len(layer) else ""
        listed = ""
        if word in ("-x", "-e", "--env", "-env", "--export"):
            listed = following
        elif word.startswith(("--env=", "--export=", "-x=")):
            listed = word.partition("=")[2]
        elif name == "env":
            listed = word
        elif word in ("-genv", "-env") and place + 2 < len(layer):
            found[following] = layer[place + 2]
        parts = listed.split(",") if name in ("srun", "sbatch", "singularity", "apptainer") else (
            [listed])  # fmt: skip
        for part in parts:
            assigned = _ASSIGNED.fullmatch(part)
            if assigned:
                found[assigned[1]] = assigned[2]
    return found
