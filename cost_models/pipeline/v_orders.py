"""Orders of the V-shaped schedules: rank r computes stage r on the way down and 2p - 1 - r back up.

Both schedules are written for many micro-batches (2p - 1 and 2p). Fewer run in the same order, with
the computations of those that are not there left out: what depends on nothing left out can run.
"""

from __future__ import annotations

from collections import Counter, deque

from shardwright.specs import Action, ActionKind

_F, _B = ActionKind.FORWARD, ActionKind.BACKWARD
_I, _W = ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT


class _Row:
    """One rank's computations while they are written: each kind counts its micro-batches up."""

    def __init__(self, num_micro_batches: int) -> None:
        self.num_micro_batches = num_micro_batches
        self.actions: list[Action] = []
        self.done: Counter[tuple[int, ActionKind]] = Counter()
        self.weights_due: deque[Action] = deque()
        """Weight gradients whose input gradients are done, oldest first."""

    def next(self, stage: int, kind: ActionKind) -> Action:
        """The action on the next micro-batch; full and split backwards count as one kind."""
        counted = _B if kind is _I else kind
        action = Action(stage, kind, self.done[stage, counted])
        self.done[stage, counted] += 1
        return action

    def write(self, *actions: Action) -> None:
        self.actions += [action for action in actions if self.is_there(action)]

    def is_there(self, action: Action) -> bool:
        assert action.micro_batch is not None
        return action.micro_batch < self.num_micro_batches

    def run(self, *steps: tuple[int, ActionKind]) -> None:
        """Each (stage, kind) on its next micro-batch."""
        self.write(*(self.next(stage, kind) for stage, kind in steps))

    def run_input(self, stage: int) -> None:
        """An input gradient; its weight gradient is due from then on."""
        action = self.next(stage, _I)
        self.write(action)
        self.weights_due.append(Action(stage, _W, action.micro_batch))

    def run_due_weight(self) -> None:
        if self.weights_due:
            self.write(self.weights_due.popleft())

    def run_pair(self, forward_stage: int, backward_stage: int) -> None:
        """A forward and a full backward at once; where one of them is left out, the other alone."""
        parts = (self.next(forward_stage, _F), self.next(backward_stage, _B))
        if all(map(self.is_there, parts)):
            self.actions.append(Action(forward_stage, ActionKind.OVERLAP_F_B, None, parts))
        else:
            self.write(*parts)


def zb_v(pp: int, num_micro_batches: int) -> list[list[Action]]:
    """ZB-V (Qi et al., 2401.10241, section 6): no bubble where F = I = W, in 1F1B's memory.

    The loss comes up on the rank that holds the first stage, so gradients start at once.
    """
    return [_zb_v_row(pp, rank, num_micro_batches) for rank in range(pp)]


def _zb_v_row(pp: int, rank: int, num_micro_batches: int) -> list[Action]:
    count = max(2 * pp - 1, num_micro_batches)
    down, up = rank, 2 * pp - 1 - rank
    row = _Row(num_micro_batches)
    for _ in range(2 * (pp - rank) - 1):
        row.run((down, _F))
    for _ in range(rank):
        row.run((up, _F), (down, _F))
    for _ in range(pp - rank):
        row.run((up, _F), (up, _I), (up, _W))
    while row.done[up, _F] < count:
        if row.done[down, _F] < count:
            row.run((down, _F))
        row.run((down, _I), (down, _W), (up, _F), (up, _I), (up, _W))
    for _ in range(rank):
        row.run((down, _I), (up, _I))
    for _ in range(pp - rank):
        row.run((down, _I), (down, _W))
    for stage in (up, down):
        row.run(*[(stage, _W)] * (count - row.done[stage, _W]))
    return row.actions


def dualpipe_v(pp: int, num_micro_batches: int) -> list[list[Action]]:
    """DualPipeV (DeepSeek's DualPipe, ``dualpipev.py``): overlapped pairs in its main part.

    While one chunk's forward computes, another's backward communicates, and the other way round:
    that hides the all-to-all of experts. The steps are numbered as in DeepSeek's program.
    """
    return [_dualpipe_v_row(pp, rank, num_micro_batches) for rank in range(pp)]


def _dualpipe_v_row(pp: int, rank: int, num_micro_batches: int) -> list[Action]:
    count = max(2 * pp, num_micro_batches)
    down, up = rank, 2 * pp - 1 - rank
    row = _Row(num_micro_batches)
    for _ in range(2 * (pp - rank - 1)):  # 1
        row.run((down, _F))
    for _ in range(rank + 1):  # 2
        row.run((down, _F), (up, _F))
    for _ in range(pp - rank - 1):  # 3
        row.run_input(up)
        row.run_due_weight()
        row.run((up, _F))
    for index in range(count - 2 * pp + rank + 1):  # 4
        if index == 0 and rank == pp - 1:  # apart, so that the turn of the V is passed earlier
            row.run((down, _F), (up, _B))
        else:
            row.run_pair(down, up)
        row.run_pair(up, down)
    for _ in range(pp - rank - 1):  # 5
        row.run((up, _B))
        row.run_pair(up, down)
    _wind_up(row, pp, rank)
    return row.actions


def _wind_up(row: _Row, pp: int, rank: int) -> None:
    """Steps 6 to 8: backwards, of which the second half is split to fill the end with weights."""
    down, up = rank, 2 * pp - 1 - rank
    num_full = rank + 1
    for index in range(2 * (rank + 1)):  # 6
        stage = down if index % 2 else up
        if index < num_full:
            row.run((stage, _B))
        else:
            row.run_input(stage)
    for _ in range(pp - rank - 1):  # 7
        row.run_due_weight()
        row.run_input(down)
    while row.weights_due:  # 8
        row.run_due_weight()
