"""Tables of links between the devices of a node, of whatever tool printed them.

One form serves ``nvidia-smi topo -m``, ``mx-smi topo``, ``mthreads-gmi topo -m``, ``npu-smi info -t
topo``, ``rocm-smi --showtopo`` and ``amd-smi topology``: a line of column names, then lines that
begin with one of them. What differs is what may follow the links (affinities), what stands on the
diagonal, and which of several tables in one output is the one about link types.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from shardwright.hardware_profiles.topology.readings import DeviceMatrix
from shardwright.hardware_profiles.topology.text import fields_of

ADDRESS = r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]"
_ACCELERATOR = re.compile(
    r"(?:(?:GPU|NPU|DCU|HCU|MLU|XPU|GCU|Device|Phy-ID|Chip|card)-?\[?\d+\]?(?:/\d+)?)"
    rf"|{ADDRESS}",
    re.IGNORECASE,
)
_LABEL = re.compile(rf"{ADDRESS}|[A-Za-z][\w.\-\[\]/]*:?", re.IGNORECASE)
_TAIL_TITLES = {
    "cpu": re.compile(r"CPU\s*[-_]?Affinity", re.IGNORECASE),
    "numa": re.compile(r"(?:NUMA|Node)\s*[-_]?Affinity|NUMA\s*Node", re.IGNORECASE),
    "device_numa": re.compile(r"(?:GPU|NPU)\s*NUMA\s*ID", re.IGNORECASE),
}
_NOT_LINKS = re.compile(
    r"-?\d[\d.,/\-]*|N/A|OK|NS|CNS|GNS|TNS|DR|CNN|U|T|F|C|NC|ENABLED|DISABLED|TRUE|FALSE|-+|\?",
    re.IGNORECASE,
)
"""Cells of tables about something else: hops, weights, bandwidths, peer access, atomics."""
_LINK = re.compile(
    r"NV[#\d]+|NVB|PIX|PXB|PHB|PIB|NODE|SYS|SOC|QPI|XGMI|PCIE|HCCS\w*|SIO|UB\w*|MX\w*|MT[L\d]\w*"
    r"|SPB|MPB|MDF|XL\d+|NA|[A-Z][A-Z_]*\d*",
    re.IGNORECASE,
)
TAB_STOP = 8

_TITLE = re.compile(r"link\s*type", re.IGNORECASE)
_SELF = re.compile(r"X|SELF|S|0|N/A|-|\*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Table:
    """A table as found, before anything is made of it."""

    title: str
    columns: tuple[str, ...]
    num_accelerators: int
    tail: tuple[tuple[str, int], ...]
    """Columns behind the links: which, and at which character they begin."""
    rows: dict[str, tuple[list[str], str]]
    """By name: the words behind it, and the whole line."""


def read_matrix(text: str) -> DeviceMatrix | None:
    """The first table of link types in a clean text; None where there is none."""
    lines = text.split("\n")
    tables = [table for table in _tables(lines) if table.rows]
    titled = [table for table in tables if _TITLE.search(table.title)]
    chosen = next((table for table in titled or tables if _is_about_links(table)), None)
    if chosen is None:
        chosen = _without_header(lines)
    if chosen is None or not _is_about_links(chosen):
        return None
    matrix = _matrix_of(chosen, _tool_of(text, chosen))
    legend = dict(re.findall(r"\b(NIC\d+)\s*[:=]\s*([A-Za-z][\w.\-]*)", text))
    numa = matrix.numa or _listed_numa(text, matrix.names)
    return replace(matrix, nic_legend=legend or None if matrix.nics else None, numa=numa)


def _tables(lines: Sequence[str]) -> Iterator[_Table]:
    position = 0
    while position < len(lines):
        header = _header(lines, position)
        if header is None:
            position += 1
            continue
        columns, tail, first_row = header
        title = next((line for line in reversed(lines[:position]) if line.strip()), "")
        rows, end = _rows(lines, first_row, columns, len(columns) + len(tail))
        count = sum(bool(_ACCELERATOR.fullmatch(name)) for name in columns)
        yield _Table(title, columns, count, tail, rows)
        position = max(end, position + 1)


def _header(
    lines: Sequence[str], position: int
) -> tuple[tuple[str, ...], tuple[tuple[str, int], ...], int] | None:
    """Column names, what follows them, and the next line; a long header may be wrapped."""
    columns: list[str] = []
    tail: tuple[tuple[str, int], ...] = ()
    at = position
    while at < len(lines) and not tail:
        head, found = _split_tail(lines[at])
        names = [name.rstrip(":") for name in fields_of(_joined(head))]
        if "|" in head and len(names) > 1 and _ACCELERATOR.fullmatch(names[1]) and not columns:
            names = names if _ACCELERATOR.fullmatch(names[0]) else names[1:]  # a corner's title
        if not all(_LABEL.fullmatch(name) and name != "X" for name in names):
            break
        if not names and not found:
            break
        if any(name in columns for name in names) or len(set(names)) < len(names):
            break
        columns, tail, at = [*columns, *names], found, at + 1
    if not columns or not _ACCELERATOR.fullmatch(columns[0]):
        return None
    if any(_ACCELERATOR.fullmatch(name) for name in columns[_first_nic(columns) :]):
        return None
    following = next((line for line in lines[at:] if not _is_rule(line)), "")
    words = fields_of(_joined(following))
    if len(words) < 2 or words[0].rstrip(":") not in columns or words[1] in columns:
        return None
    return tuple(columns), tail, at


def _first_nic(columns: Sequence[str]) -> int:
    return next(
        (i for i, name in enumerate(columns) if not _ACCELERATOR.fullmatch(name)), len(columns)
    )


def _split_tail(line: str) -> tuple[str, tuple[tuple[str, int], ...]]:
    """The part of a header that names devices, and the titles behind with their positions."""
    found: list[tuple[str, int]] = []
    rest = line
    for name in ("device_numa", "cpu", "numa"):  # "GPU NUMA ID" holds what others look for
        match = _TAIL_TITLES[name].search(rest)
        if match:
            found.append((name, match.start()))
            rest = rest[: match.start()] + " " * len(match[0]) + rest[match.end() :]
    found.sort(key=lambda item: item[1])
    head = line[: found[0][1]] if found else line
    return head, tuple(found)


def _joined(line: str) -> str:
    """Names of two words as one: ``Device 0``, ``GPU 0/0``."""
    return re.sub(r"\b(Device|GPU|NPU|Phy-ID)\s(\d+(?:/\d+)?)(?=\s|$|\|)", r"\1\2", line)


def _rows(
    lines: Sequence[str], start: int, columns: Sequence[str], width: int
) -> tuple[dict[str, tuple[list[str], str]], int]:
    """Lines that begin with a column's name; ends at the first other one.

    A row of fewer than ``width`` words may go on in the next line.
    """
    rows: dict[str, tuple[list[str], str]] = {}
    name = ""
    at = start
    for at in range(start, len(lines)):
        words = fields_of(_joined(lines[at]))
        if _is_rule(lines[at]):
            continue
        label = words[0].rstrip(":")
        if label in columns and label not in rows and len(words) > 1 and words[1] not in columns:
            name = label
            rows[name] = (words[1:], lines[at])
        elif name and len(rows[name][0]) < width and all(map(_is_cell, words)):
            rows[name] = (rows[name][0] + words, " ".join([name, *rows[name][0], *words]))
        else:
            return rows, at
    return rows, at + 1


def _is_rule(line: str) -> bool:
    """Whether a line separates others and says nothing."""
    return set(line) <= set("-=+|: \t")


def _is_cell(word: str) -> bool:
    return bool(_LINK.fullmatch(word) or _NOT_LINKS.fullmatch(word) or _SELF.fullmatch(word))


def _is_about_links(table: _Table) -> bool:
    """Whether cells off the diagonal name kinds of links."""
    cells = [
        cell
        for name, (words, _) in table.rows.items()
        for column, cell in zip(table.columns, words, strict=False)
        if column != name
    ]
    links = [cell for cell in cells if _LINK.fullmatch(cell) and not _NOT_LINKS.fullmatch(cell)]
    if not cells:  # one device alone: only the affinities or the title tell
        return bool(table.tail or _TITLE.search(table.title))
    return len(links) * 2 > len(cells)


def _matrix_of(table: _Table, tool: str) -> DeviceMatrix:
    names = table.columns[: table.num_accelerators]
    nics = table.columns[table.num_accelerators :]
    cells = {name: _cells(words, len(table.columns)) for name, (words, _) in table.rows.items()}
    tails = {name: _tail(table, name, line) for name, (_, line) in table.rows.items()}
    columns = list(table.columns)

    def link(one: str, other: str) -> str | None:
        if one == other:
            return "X"
        direct = cells[one][columns.index(other)] if one in cells else None
        if direct is None and other in cells:
            return cells[other][columns.index(one)]
        return direct

    def column(title: str) -> dict[str, str] | None:
        found = {name: tails[name][title] for name in names if title in tails.get(name, {})}
        return found or None

    return DeviceMatrix(
        tool=tool,
        names=names,
        links=tuple(tuple(link(one, other) for other in names) for one in names),
        nics=nics,
        nic_links=tuple(tuple(link(one, nic) for nic in nics) for one in names) if nics else None,
        nic_rows=tuple(name for name in nics if name in table.rows) if nics else None,
        cpu_affinity=column("cpu"),
        numa=column("numa"),
        device_numa=column("device_numa"),
    )


def _cells(words: Sequence[str], count: int) -> list[str | None]:
    """The first ``count`` words, None for those that were cut off."""
    found: list[str | None] = list(words[:count])
    return found + [None] * (count - len(found))


def _tail(table: _Table, name: str, line: str) -> dict[str, str]:
    """What stands behind the links of a row, by title.

    As many words as titles: in order. Fewer: by tabs, else by where they stand.
    """
    titles = [title for title, _ in table.tail]
    plain = re.sub(r"(?<=\d),[ \t]+(?=\d)", ",", _joined(line).replace("|", " "))
    words = [m for m in re.finditer(r"\S+", plain)][1 + len(table.columns) :]
    if not titles or not words:
        return {}
    if len(words) >= len(titles):
        return {title: word[0] for title, word in zip(titles, words, strict=False)}
    cells = [cell.strip() for cell in plain.split("\t")]
    if len(cells) > 1 + len(table.columns) and cells[0] == name:
        behind = cells[1 + len(table.columns) :]
        last = next((cell for cell in behind[len(titles) - 1 :] if cell), "")
        values = [*behind[: len(titles) - 1], last]
        return {title: value for title, value in zip(titles, values, strict=False) if value}
    return _grown_together(table.tail, words) or _by_position(table.tail, words)


def _grown_together(
    tail: Sequence[tuple[str, int]], words: Sequence[re.Match[str]]
) -> dict[str, str]:
    """A list of CPUs that filled its column and met the NUMA node behind: ``240-2551``.

    ``mthreads-gmi`` pads columns to a fixed width and puts no space behind what is wider.
    """
    titles, (word, *others) = [title for title, _ in tail], words
    if titles != ["cpu", "numa"] or others or word.end() <= tail[1][1]:
        return {}
    apart = re.fullmatch(r"([\d,\-]*-\d+)(\d)", word[0])
    return {"cpu": apart[1], "numa": apart[2]} if apart else {}


def _by_position(tail: Sequence[tuple[str, int]], words: Sequence[re.Match[str]]) -> dict[str, str]:
    """Words behind the links where some are missing, by where they stand.

    Under their titles; or, where tabs became spaces, by stops of 8 characters: an empty cell is one
    stop wide, however wide its title is.
    """
    starts = [start for _, start in tail]
    if all(any(abs(word.start() - start) <= 1 for start in starts) for word in words):
        return {
            tail[min(range(len(starts)), key=lambda i: abs(starts[i] - word.start()))][0]: word[0]
            for word in words
        }
    found: dict[str, str] = {}
    remaining, stop = list(words), starts[0]
    for title, _ in tail[:-1]:
        if remaining and remaining[0].start() < stop + TAB_STOP // 2:
            word = remaining.pop(0)
            found[title] = word[0]
            stop = (word.end() // TAB_STOP + 1) * TAB_STOP
        else:
            stop += TAB_STOP
    if remaining:
        found[tail[-1][0]] = remaining[0][0]
    return found


def _without_header(lines: Sequence[str]) -> _Table | None:
    """Rows of which the line of column names was cut off."""
    rows: dict[str, tuple[list[str], str]] = {}
    for line in lines:
        words = fields_of(line)
        if len(words) > 1 and _LABEL.fullmatch(words[0]) and "X" in words[1:]:
            rows.setdefault(words[0], (words[1:], line))
    names = [name for name in rows if _ACCELERATOR.fullmatch(name)]
    if not names or [rows[name][0].index("X") for name in names] != list(range(len(names))):
        return None
    first = rows[names[0]][0]
    links = next((i for i, word in enumerate(first) if _NOT_LINKS.fullmatch(word)), len(first))
    nics = [name for name in rows if not _ACCELERATOR.fullmatch(name)]
    nics += [f"NIC{i}" for i in range(len(nics), links - len(names))]
    columns = (*names, *nics[: links - len(names)])
    behind = len(first) - len(columns)
    tail = tuple((title, 0) for title in ("cpu", "numa", "device_numa")[:behind])
    return _Table("", columns, len(names), tail, rows)


def _tool_of(text: str, table: _Table) -> str:
    """Which tool prints such a table."""
    first = table.columns[0].lower()
    links = {word for words, _ in table.rows.values() for word in words}
    if first.startswith(("npu", "phy-id")):
        return "npu-smi"
    if re.fullmatch(ADDRESS, first):
        return "amd-smi"
    if re.search(r"ROCm System Management|between two GPUs", text):
        return "rocm-smi"
    if "MetaX" in text or "mx-smi" in text or "MX" in links:
        return "mx-smi"
    if re.search(r"mthreads|mtlink", text, re.IGNORECASE) or {"SPB", "MPB"} & links:
        return "mthreads-gmi"
    if any(re.fullmatch(r"MT\d+", link) for link in links):
        return "mthreads-gmi"
    return "nvidia-smi"


def _listed_numa(text: str, names: Sequence[str]) -> dict[str, str] | None:
    """``GPU[3] : (Topology) Numa Node: 1`` below the tables."""
    rows = dict(re.findall(r"(?:GPU|HCU|DCU) ?\[?(\d+)\]?\s*:.*?Numa Node\s*:\s*(-?\d+)", text))
    found = {name: rows[index] for i, name in enumerate(names) if (index := str(i)) in rows}
    return found or None
