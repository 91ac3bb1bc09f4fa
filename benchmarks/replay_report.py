"""What a replay says: one screen in plain text, and a page of the docs with the same figures."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from benchmarks.replay_facts import (
    CHRONICLE,
    ELSEWHERE,
    FIRST_DAY,
    FIXED,
    FORBIDDEN,
    LAST_DAY,
    NUM_DAYS,
    README,
    STACK,
    Trial,
    numbers,
    shape_in_words,
)
from benchmarks.replay_scores import (
    Grid,
    MeanSummary,
    Summary,
    chance_regrets,
    regret_of,
    rule_regrets,
    start_up_gpu_hours,
    sweep_gpu_hours,
)
from benchmarks.replay_story import Answer, Story
from shardwright.planner.validation.scores import memory_errors, oom_scores
from shardwright.specs import Candidate

MOST_GPUS = 384
RULE = (
    '"tp8 first": tensor parallelism over the 8 GPUs of a node; the fewest stages that fit; the'
    " rest data parallelism; the largest micro-batch (a power of two) that fits"
)

COMMAND = """\
shardwright plan bloom-176b --cluster a100-sxm4-80gb:8x48,inter=50GB/s \\
    --global-batch 2048 --seq-len 2048 --stack megatron-deepspeed \\
    --fix recompute=full --forbid zero2,zero3,offload"""

Row = tuple[str, ...]


# Cells


def layout_cell(candidate: Candidate | None) -> str:
    """A plan in the degrees that the sweep varied."""
    return "nothing fits" if candidate is None else str(Grid.of(candidate.layout))


def seconds_cell(candidate: Candidate | None) -> str:
    """Predicted seconds with their band."""
    if candidate is None:
        return "-"
    low_s, high_s = candidate.prediction.step_time_band_s
    return f"{candidate.prediction.step_time_s:.0f} ({low_s:.0f}-{high_s:.0f})"


def fate_cell(answer: Answer) -> str:
    """What became of the plan among the trials."""
    fate = answer.fate
    if fate is None or fate.tried is None:
        return "not among them"
    if fate.ran_out_of_memory:
        return "ran out of memory"
    return f"{fate.tried.row.step_time_s:.1f} s, {fate.rank} of {fate.num_timed}"


def best_cells(answer: Answer) -> Row:
    """The fastest trial and its seconds."""
    best = answer.best
    if best is None:
        return "none ran", "-"
    return str(Grid.of(best.row.parallel)), f"{best.row.step_time_s:.1f}"


def gain_cell(story: Story, answer: Answer) -> str:
    """The plan's predicted step beside that of the fastest trial, also predicted."""
    best = answer.best
    if best is None or answer.plan is None:
        return "-"
    return f"{answer.plan.prediction.step_time_s / story.predicted_s[best.row.id] - 1:+.0%}"


def regret_cell(answer: Answer, picked: Trial | None) -> str:
    """A pick among the trials, and what it cost."""
    if picked is None or answer.num_timed < 2:
        return "-"
    return f"{regret_of(picked, answer.trials):+.1%}"


def answer_cells(story: Story, answer: Answer) -> Row:
    """One line of the table of shapes."""
    first = answer.trials[0]
    return (
        first.date[5:], shape_in_words(first.row), str(first.row.parallel.global_batch),
        layout_cell(answer.plan), seconds_cell(answer.plan), fate_cell(answer),
        *best_cells(answer), gain_cell(story, answer), str(answer.num_timed),
        regret_cell(answer, story.picked.get(answer.problem)),
        regret_cell(answer, story.ruled.get(answer.problem)),
    )  # fmt: skip


HEADINGS = (
    "day", "layers x hidden", "batch", "plan", "predicted s", "plan as a trial", "fastest trial",
    "s", "plan / it", "of", "pick", "tp8 first",
)  # fmt: skip


def knowledge_rows(story: Story) -> Iterator[Row]:
    """The scores for each state of knowledge, and for rules without any."""
    yield "nothing of the software", *_summary_cells(story.unseen_summary)
    yield f"one trial (mean of {story.anchored.num_choices})", *_mean_cells(story.anchored)
    yield f"{num_elsewhere()} runs of it elsewhere", *_summary_cells(story.elsewhere)
    yield "the catalogue: saw them all", *_summary_cells(story.catalogue)
    for name, regrets in (
        ("tp8 first", rule_regrets(story.trials)),
        ("a trial at random", chance_regrets(story.trials)),
    ):
        best = sum(regret == 0.0 for regret in regrets)
        yield (
            name, "", "", "", "", "", f"{best} of {len(regrets)}",
            f"{statistics.fmean(regrets):.1%}", f"{max(regrets):.0%}",
        )  # fmt: skip


KNOWLEDGE_HEADINGS = (
    "known", "median error", "bias", "in band", "order, shape", "order, section", "best picks",
    "mean regret", "worst",
)  # fmt: skip


def _summary_cells(one: Summary) -> Row:
    return (
        f"{one.median_error:.1%}", f"{one.bias:+.1%}", f"{one.band_coverage:.0%}",
        str(one.within_shapes), str(one.within_sections),
        f"{one.num_best} of {len(one.regrets)}", f"{one.mean_regret:.1%}",
        f"{max(one.regrets):.0%}",
    )  # fmt: skip


def _mean_cells(one: MeanSummary) -> Row:
    return (
        f"{one.median_error:.1%}", f"{one.bias:+.1%}", f"{one.band_coverage:.0%}",
        f"{one.within_shapes:.0%}", f"{one.within_sections:.0%}", f"{one.best:.0%}",
        f"{one.mean_regret:.1%}", f"{one.worst_regret:.0%}",
    )  # fmt: skip


# Sentences


def headline(story: Story) -> str:
    """What was done, in a paragraph."""
    return (
        f"BigScience, {FIRST_DAY} to {LAST_DAY} 2022: {len(story.trials)} trials of layouts on up"
        f" to {MOST_GPUS} A100 of 80 GB before BLOOM was trained. Every measurement was hidden"
        " while the shapes were planned, and the cost model has seen no run of that software: its"
        f" numbers are those of {_num_known_runs()} published runs of other software."
    )


def _num_known_runs() -> int:
    return sum(numbers().num_runs.values())


def num_elsewhere() -> int:
    """Runs of the very software that were not BigScience's."""
    return numbers(ELSEWHERE).num_runs[STACK]


def tensor_words(story: Story) -> str:
    """How many plans use less tensor parallelism than the sweep did before it tried."""
    plans = {
        (shape_in_words(one.trials[0].row), one.trials[0].row.parallel.global_batch,
         one.trials[0].row.precision): Grid.of(one.plan.layout).tp
        for one in story.answers if one.plan is not None
    }  # fmt: skip
    less = sum(tp < 8 for tp in plans.values())
    first = next(one for one in story.trials if Grid.of(one.row.parallel).tp < 8)
    return (
        f"{less} of {len(plans)} plans take tp 4 or less. The sweep tried less than tp 8 for the"
        f' first time under "{first.section}" ({first.date}): "Tweaking TP for the first time from'
        ' the TP=8 is best assumption".'
    )


def order_words(story: Story) -> str:
    """Where order is right and where not."""
    found, (measured, predicted) = story.by_difference, story.larger_micro_batch
    return (
        f"Pairs of a shape that differ in tp: {found['tp']} in order. In pp under the same tp:"
        f" {found['pp']}. In the micro-batch alone: {found['micro-batch']}: under tp 8, 4 sequences"
        f" instead of 2 changed the measured step by {measured - 1:+.1%} in the median, where"
        f" {predicted - 1:+.1%} is predicted. The chronicle has runs of this size under"
        " CUDA_LAUNCH_BLOCKING=1, which the model was not told. One trial corrects the level, not"
        " the order."
    )


def pick_words(story: Story) -> str:
    """The picks beside those of rules, in a sentence."""
    own = story.unseen_summary
    rule, chance = rule_regrets(story.trials), chance_regrets(story.trials)
    return (
        f"Among layouts that were tried, most of them tp 8, the pick costs {own.mean_regret:.1%}"
        f" over the fastest in the mean ({own.num_best} of {len(own.regrets)} are the fastest); tp8"
        f" first costs {statistics.fmean(rule):.1%}, a trial at random"
        f" {statistics.fmean(chance):.1%}."
    )


def memory_words(story: Story) -> str:
    """Peaks and verdicts."""
    errors, oom = memory_errors(story.unseen)["device"], oom_scores(story.unseen)
    assert errors.median is not None
    assert errors.p90 is not None
    ratios = [one.memory_ratio for one in story.unseen if one.memory_ratio is not None]
    worst = max(ratios, key=lambda ratio: abs(ratio - 1))
    missed = [one.id for one in story.unseen if one.measured_oom and not one.predicted_oom]
    num_oom = oom.oom_refused + oom.oom_accepted
    words = (
        f"Peak memory of {errors.count} trials: {errors.median:.1%} off in the median, 90 % of them"
        f" within {errors.p90:.1%}, the worst {worst - 1:+.0%}. Of {num_oom} trials that ran out of"
        f" memory {oom.oom_refused} is refused; of {oom.ran_refused + oom.ran_accepted} that ran,"
        f" {oom.ran_refused or 'none'}."
    )
    return words + "".join(f" Missed: {one}." for one in missed)


def cost_words(story: Story) -> Iterator[str]:
    """What the sweep took."""
    held = MOST_GPUS * 24 * NUM_DAYS
    yield (
        f"At the least {sweep_gpu_hours(story.trials):,.0f} GPU-hours: two steps of each trial that"
        ' ran, for the source reads "always 2nd". Each minute before the first step, which the'
        f" source does not state, adds {start_up_gpu_hours(story.trials):,.0f}. At the most"
        f" {held:,}, if {MOST_GPUS} GPUs did nothing else for the {NUM_DAYS} days."
    )
    one = story.launched.trials[0].row
    assert one.step_time_s is not None
    confirm = 2 * one.step_time_s * (one.num_gpus or 0) / 3600
    yield (
        "The plans take seconds on one core. One trial that confirms the plan of the shape that was"
        f" launched: {confirm:.0f} GPU-hours and its start. A plan does not replace the trials that"
        " settle what its model cannot order, here the micro-batch."
    )


def launched_words(story: Story) -> str:
    """The model that was trained in the end."""
    answer, result = story.launched, story.launched_result
    trial = answer.trials[0]
    assert answer.plan is not None
    assert answer.rule is not None
    assert result.band_s is not None
    grid, ran = Grid.of(answer.plan.layout), Grid.of(trial.row.parallel)
    verdict = "the very layout" if grid == ran else f"where they ran {ran}"
    rule_s = answer.rule.prediction.step_time_s
    own_s = answer.plan.prediction.step_time_s
    return (
        f"BLOOM, {shape_in_words(trial.row)}, bf16: planned {grid}, {verdict} that was trained from"
        f" 11 March 2022; predicted {own_s:.0f} s ({result.band_s[0]:.0f} to"
        f" {result.band_s[1]:.0f}), logged about {trial.row.step_time_s:.0f} s."
        f" By tp8 first: {Grid.of(answer.rule.layout)}, predicted {rule_s / own_s - 1:+.0%}."
    )


def unrecomputed_words(story: Story) -> str:
    """What nobody tried."""
    shapes = [one for one in story.answers if one.plan is not None and one.unrecomputed is not None]
    kinds = {
        (shape_in_words(one.trials[0].row), one.trials[0].row.parallel.global_batch)
        for one in shapes
        if one.unrecomputed is not None
        and one.plan is not None
        and one.unrecomputed.prediction.step_time_s < one.plan.prediction.step_time_s
    }
    return (
        f"Plans are held to full recomputation, which every trial had. Without it {len(kinds)}"
        " shapes would fit and are predicted faster still; no trial tells whether that is true."
    )


# The screen


def screen(story: Story) -> str:
    """All of it in one screen of plain text."""
    return "\n".join(_screen(story)) + "\n"


def _screen(story: Story) -> Iterator[str]:
    yield from _wrapped(headline(story))
    yield "\n1  The plan for each shape of which several layouts were tried, and then the trials"
    shown = [one for one in story.answers if one.num_timed > 1 or (one.fate and one.fate.tried)]
    yield from _columns(HEADINGS, [answer_cells(story, one) for one in shown])
    yield from _wrapped(
        "plan / it: predicted step of the plan beside the predicted step of the fastest trial."
        " pick: of the trials, the one that is predicted the fastest; measured over the fastest."
        f" {RULE}. " + tensor_words(story)
    )
    yield "\n2  How far to trust it"
    yield from _columns(KNOWLEDGE_HEADINGS, list(knowledge_rows(story)))
    yield from _wrapped(order_words(story))
    yield from _wrapped(pick_words(story))
    yield "\n3  Memory"
    yield from _wrapped(memory_words(story))
    yield "\n4  What the sweep took"
    yield from _wrapped(" ".join(cost_words(story)))
    yield "\n5  What was launched"
    yield from _wrapped(launched_words(story))


_WIDTH = 130


def _wrapped(words: str) -> Iterator[str]:
    line = "  "
    for word in words.split():
        if len(line) + 1 + len(word) > _WIDTH:
            yield line
            line = "  "
        line += f" {word}"
    yield line


def _columns(headings: Row, rows: Sequence[Row]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    for row in (headings, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield ("   " + "  ".join(cells)).rstrip()


# The page


def page(story: Story) -> str:
    """``docs/explanation/replay.md``."""
    return "\n\n".join(_page(story)) + "\n"


def _page(story: Story) -> Iterator[str]:
    yield "# A sweep, replayed"
    yield (
        f"{headline(story)} `make replay` does it again from a clean clone and prints this in a"
        " screen; `python -m benchmarks.replay --write` writes this page."
    )
    yield (
        "![Predicted against measured, and picks among the trials](replay/replay.svg)\n\n"
        "Left: each trial, predicted without any run of its software (hollow), and after one other"
        " trial (filled, mean over which). Right: the trials of each shape, by how much longer they"
        " took than the fastest; ours and that of tp8 first are marked."
    )
    yield f"## What was launched\n\n{launched_words(story)}"
    yield f"On the command line, with the catalogue's numbers:\n\n```bash\n{COMMAND}\n```"
    yield (
        f"## Every shape\n\n{_markdown(HEADINGS, [answer_cells(story, a) for a in story.answers])}"
        f"\n\n{_table_words()}"
    )
    yield tensor_words(story)
    yield unrecomputed_words(story)
    yield (
        "## How far to trust it\n\n"
        f"{_markdown(KNOWLEDGE_HEADINGS, list(knowledge_rows(story)))}\n\n"
        "*order*: pairs that differ by more than 5 % and are predicted in the same order; of one"
        " shape, by step; of one section of the chronicle, by seconds a sequence. *one trial*:"
        " calibrated on each trial in turn, the others scored. *elsewhere*: all runs but"
        " BigScience's are known; the same software trained MT-NLG. *the catalogue*: for"
        " comparison; its numbers were fitted to these trials among others."
    )
    yield pick_words(story)
    yield order_words(story)
    yield f"## Memory\n\n{memory_words(story)}"
    yield "## What the sweep took\n\n" + "\n\n".join(cost_words(story))
    yield _caveats()


def _table_words() -> str:
    fixed = ",".join(f"{name}={value}" for name, value in FIXED.items())
    return (
        "*plan*: the fastest layout under the model of all that this software could run: `--fix"
        f" {fixed} --forbid {','.join(FORBIDDEN)}`, heads that divide, tp within a node, beside"
        " what the catalogue says that `megatron-deepspeed` lacks; from 27 February embedding and"
        " head may stand for a layer each. *predicted s*: with its 80 % band. *plan as a trial*:"
        " its seconds and its rank, where it is among the trials that are restated here. *plan /"
        " it*: predicted step of the plan beside the predicted step of the fastest trial. *of*:"
        " trials that ran. *pick*: of the trials, the one that is predicted the fastest; measured"
        f" over the fastest. *tp8 first*: the same for {RULE}."
    )


def _markdown(headings: Row, rows: Sequence[Row]) -> str:
    lines = [headings, tuple("---" for _ in headings), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def _caveats() -> str:
    return (
        "## What this does not show\n\n"
        "- A plan that nobody tried is not confirmed by being predicted fast. The chronicle prints"
        " more trials than are restated here; the others are left out, so that something stays that"
        " nothing was fitted to.\n"
        "- No number was fitted to these trials or to their software, but the form of the model was"
        " worked out while they were at hand, and so were the facts of that software's memory.\n"
        "- The memory that is furthest off is 65 GB, printed for 2 sequences a micro-batch beside"
        " 56 GB for 4 of the same layout.\n"
        "- One step was timed of each trial. The same layout took 121.5, 120.2, 114.1 and 114.0 s"
        " within a week, while the cluster was being tuned.\n"
        f"- Sources: [the chronicle]({CHRONICLE}) for the trials, each with its line in"
        f" `benchmarks/replay_runs.toml`; [the README of the training]({README}) for what was"
        " launched.\n"
        "- The numbers are in `benchmarks/replay_unseen.json` and"
        " `benchmarks/replay_elsewhere.json`; `python -m benchmarks.replay_fit` makes them from"
        " published runs."
    )
