"""The replay as one SVG: predicted against measured steps, and picks among each shape's trials.

Written by hand, as `planner.validation.plots` does, so that no plotting library is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from xml.sax.saxutils import escape

from benchmarks.replay_facts import Trial, shape_in_words
from benchmarks.replay_scores import Grid
from benchmarks.replay_story import Answer, Story

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")
"""Okabe and Ito's, which people who see fewer colours can tell apart too; one a section."""
_HEIGHT, _TOP = 560, 60
_LEFT, _SIDE = 60, 440
"""Pixels: where the left panel begins, and how wide it is."""
_RIGHT, _RIGHT_WIDTH = 760, 400
_LOW_S, _HIGH_S = 80.0, 240.0
"""Seconds that the left panel shows."""
_MOST = 0.4
"""Of the right panel: longer than the fastest by so much."""


def draw(story: Story) -> str:
    """The whole figure."""
    width = _RIGHT + _RIGHT_WIDTH + 40
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{_HEIGHT}"'
        f' viewBox="0 0 {width} {_HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{_HEIGHT}" fill="white"/>',
        _text(_LEFT, 24, "BigScience's sweep on up to 384 A100, replayed", size=16),
        *_scatter(story),
        *_choices(story),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _text(x: float, y: float, words: str, *, size: int = 12, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">'
        f"{escape(words)}</text>"
    )


def _line(x1: float, y1: float, x2: float, y2: float, style: str = 'stroke="#dddddd"') -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {style}/>'


@dataclass(frozen=True, slots=True)
class _Dot:
    x: float
    y: float
    colour: str
    words: str
    is_filled: bool = True

    def __str__(self) -> str:
        fill = f'fill="{self.colour}" fill-opacity="0.75"' if self.is_filled else 'fill="none"'
        return (
            f'<circle cx="{self.x:.1f}" cy="{self.y:.1f}" r="4" stroke="{self.colour}" {fill}>'
            f"<title>{escape(self.words)}</title></circle>"
        )


# Left: predicted against measured


def _x(seconds: float) -> float:
    return _LEFT + _SIDE * (seconds - _LOW_S) / (_HIGH_S - _LOW_S)


def _y(seconds: float) -> float:
    return _TOP + _SIDE - _SIDE * (seconds - _LOW_S) / (_HIGH_S - _LOW_S)


def _scatter(story: Story) -> Iterator[str]:
    bottom, right = _TOP + _SIDE, _LEFT + _SIDE
    for seconds in range(int(_LOW_S), int(_HIGH_S) + 1, 20):
        yield _line(_x(seconds), _TOP, _x(seconds), bottom)
        yield _line(_LEFT, _y(seconds), right, _y(seconds))
        yield _text(_x(seconds), bottom + 16, str(seconds), anchor="middle")
        yield _text(_LEFT - 6, _y(seconds) + 4, str(seconds), anchor="end")
    yield _line(_LEFT, bottom, right, _TOP, 'stroke="black"')
    for ratio in (0.8, 1.2):
        low, high = max(_LOW_S, _LOW_S / ratio), min(_HIGH_S, _HIGH_S / ratio)
        dashed = 'stroke="#888888" stroke-dasharray="4 4"'
        yield _line(_x(low), _y(low * ratio), _x(high), _y(high * ratio), dashed)
    yield _text(_LEFT + _SIDE / 2, bottom + 36, "measured step, s", anchor="middle")
    yield _text(_LEFT, _TOP - 10, "predicted step, s: hollow: software unseen; filled: after one")
    colours = section_colours(story.trials)
    for trial, result in zip(story.trials, story.unseen, strict=True):
        measured_s, predicted_s = result.measured_step_time_s, result.predicted_step_time_s
        if measured_s is None or predicted_s is None:
            continue
        mean_s, colour = story.anchored_means_s[trial.row.id], colours[trial.section]
        words = f"{trial.row.id}: {measured_s:.1f} s measured, "
        yield _line(
            _x(measured_s), _y(predicted_s), _x(measured_s), _y(mean_s),
            f'stroke="{colour}" stroke-opacity="0.3"',
        )  # fmt: skip
        yield str(_Dot(_x(measured_s), _y(predicted_s), colour, f"{words}{predicted_s:.1f}", False))
        yield str(_Dot(_x(measured_s), _y(mean_s), colour, f"{words}{mean_s:.1f} after one trial"))
    yield from _launched(story)
    yield from _legend(story, colours)


def _launched(story: Story) -> Iterator[str]:
    """BLOOM's own layout, as a diamond."""
    measured_s = story.launched.trials[0].row.step_time_s
    predicted_s = story.launched_result.predicted_step_time_s
    assert measured_s is not None
    assert predicted_s is not None
    yield _diamond(_x(measured_s), _y(predicted_s))


def section_colours(trials: tuple[Trial, ...]) -> dict[str, str]:
    """One colour a section, in the chronicle's order."""
    sections = dict.fromkeys(trial.section for trial in trials)
    return {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(sections)}


def _legend(story: Story, colours: dict[str, str]) -> Iterator[str]:
    days = {trial.section: trial.date[5:] for trial in story.trials}
    for number, (section, colour) in enumerate(colours.items()):
        y = _TOP + 18 + 16 * number
        yield f'<circle cx="{_LEFT + 14}" cy="{y - 4}" r="4" fill="{colour}"/>'
        yield _text(_LEFT + 24, y, f"{days[section]} {section}", size=11)
    y = _TOP + 18 + 16 * len(colours)
    yield _diamond(_LEFT + 14, y - 4)
    yield _text(_LEFT + 24, y, "BLOOM as it was trained, software unseen", size=11)


# Right: picks among trials


def _choices(story: Story) -> Iterator[str]:
    shown = story.choices
    step = _SIDE / len(shown)
    bottom = _TOP + _SIDE
    for percent in range(0, int(_MOST * 100) + 1, 10):
        x = _RIGHT + _RIGHT_WIDTH * percent / 100 / _MOST
        yield _line(x, _TOP, x, bottom)
        yield _text(x, bottom + 16, f"+{percent} %", anchor="middle")
    words = "step beyond that of the shape's fastest trial"
    yield _text(_RIGHT + _RIGHT_WIDTH / 2, bottom + 36, words, anchor="middle")
    yield from _marks_legend()
    for number, answer in enumerate(shown):
        yield from _choice(story, answer, _TOP + step * (number + 0.5))


def _marks_legend() -> Iterator[str]:
    y = _TOP - 14
    yield _ring(_RIGHT + 4, y)
    yield _text(_RIGHT + 16, y + 4, "pick of the model that saw no run of the software")
    yield _square(_RIGHT + 310, y)
    yield _text(_RIGHT + 322, y + 4, "tp8 first")


def _choice(story: Story, answer: Answer, y: float) -> Iterator[str]:
    first, best = answer.trials[0], answer.best
    assert best is not None
    assert best.row.step_time_s is not None
    label = f"{first.date[5:]} {shape_in_words(first.row)}, {first.row.parallel.global_batch}"
    yield _text(_RIGHT - 12, y + 4, label, size=11, anchor="end")
    yield _line(_RIGHT, y, _RIGHT + _RIGHT_WIDTH, y)
    colour = section_colours(story.trials)[first.section]
    for trial in answer.trials:
        seconds = trial.row.step_time_s
        if seconds is None:
            continue
        x = _RIGHT + _RIGHT_WIDTH * (seconds / best.row.step_time_s - 1) / _MOST
        yield str(_Dot(x, y, colour, f"{Grid.of(trial.row.parallel)}: {seconds:.1f} s"))
        if story.picked.get(answer.problem) is trial:
            yield _ring(x, y)
        if story.ruled.get(answer.problem) is trial:
            yield _square(x, y)


def _diamond(x: float, y: float) -> str:
    points = f"{x - 7:.1f},{y:.1f} {x:.1f},{y - 7:.1f} {x + 7:.1f},{y:.1f} {x:.1f},{y + 7:.1f}"
    return f'<polygon points="{points}" fill="white" stroke="black" stroke-width="2"/>'


def _ring(x: float, y: float) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="8" fill="none" stroke="black" stroke-width="2"/>'


def _square(x: float, y: float) -> str:
    return (
        f'<rect x="{x - 10:.1f}" y="{y - 10:.1f}" width="20" height="20" fill="none"'
        ' stroke="#666666" stroke-width="1.5"/>'
    )
