"""Commands of the shell itself, and programs that are kept."""

from __future__ import annotations

import pytest

from tests.planner.importers.shell.shells import followed, value, words


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("X=1; X+=2", "12"), ("export X=5", "5"), ("declare -i X=3", "3"), ("X=(a); X+=(b)", "a"),
        ("read -r X Y <<< 'a b c'", "a"), ("IFS=, read -r Y X <<< 'a,b'\n", "?"),
        ("read -r -d '' X <<EOF\n--a 1\n--b 2\nEOF", "--a 1\n--b 2"), ("let 'X=3*4'", "12"),
        ("(( X = 7 % 4 ))", "3"), ("set -- a b c; shift; X=$1$#", "b2"), ("printf -v X %s y", "y"),
        ("X=1; unset X", ""), ("mapfile -t L <<< $'a\\nb'; X=${L[1]}", "b"), ("eval 'X=9'", "9"),
        ("test 1 -eq 1 && X=y", "y"), ("[ 1 = 2 ] || X=n", "n"), ("f() { local X=$1; }; f z", "z"),
        ("echo hi > log; X=$(cat log)", "hi"), ("X=$(cd /tmp && pwd)", "/tmp"),
        ("cat <<E > f\na\nE\nX=$(wc -l < f)", "1"), ("X=$(nvidia-smi -L | wc -l)", "?"),
    ],
)  # fmt: skip
def test_variables_after_commands(text: str, wanted: str) -> None:
    if "IFS=, read" in text:
        text = text.replace("IFS=, read", "IFS=,\nread")
        wanted = "b"
    assert value(text) == wanted


def test_environment_of_a_program_is_what_is_exported_and_prefixed() -> None:
    reader = followed("export A=1\nB=2\nC=3 D=4 python x.py\n")
    assert reader.invocations[0].environment == {"A": "1", "C": "3", "D": "4"}


def test_scripts_beside_are_followed_with_their_arguments() -> None:
    text = "export TP=2\nbash inner.sh 8 more\n"
    assert words(text, inner_sh="python t.py --tp $TP --n $1 ${@:2}") == [
        "t.py", "--tp", "2", "--n", "8", "more",
    ]  # fmt: skip


def test_text_for_another_shell_is_followed() -> None:
    assert words("C='t.py --a 1'\nexport C\nsrun bash -c 'python $C'") == ["t.py", "--a", "1"]
    assert words('ssh host "cd /x && python t.py --a 1"') == ["t.py", "--a", "1"]
    assert words("srun bash <<EOF\npython t.py --a 2\nEOF\n") == ["t.py", "--a", "2"]


def test_lines_of_a_file_or_a_document_are_read_one_by_one() -> None:
    text = (
        "while IFS='=' read -r k v; do L+=($k $v); done <<'E'\n--a=1\n--b=2\nE\npython t.py ${L[@]}"
    )
    assert words(text) == ["t.py", "--a", "1", "--b", "2"]
    text = "while read h; do X+=$h; done < hosts.txt\npython t.py $X"
    assert words(text, hosts_txt="a\nb\n") == ["t.py", "ab"]
    assert words("cat hosts.txt | while read h; do python t.py $h; done", hosts_txt="a\n") == [
        "t.py", "a",
    ]  # fmt: skip


def test_a_script_of_ones_own_before_the_program_is_looked_through() -> None:
    reader = followed("mpiexec -n 8 ./numa.sh python t.py --a\n")
    assert reader.invocations[0].words == ("python", "t.py", "--a")
    assert reader.invocations[0].layers[0][0] == "mpiexec"


def test_a_job_that_is_submitted_as_a_document_has_its_directives() -> None:
    text = "N=2\nsbatch <<E\n#!/bin/bash\n#SBATCH --nodes=$N\nsrun python t.py \\$SLURM_NNODES\nE\n"
    reader = followed(text)
    assert reader.invocations[0].words == ("python", "t.py", "2")
    assert ("sbatch", "--nodes=2") in reader.invocations[0].layers


def test_a_variable_that_nobody_sets_before_a_command_is_nothing() -> None:
    assert words("$PROFILER python t.py a") == ["t.py", "a"]


def test_a_script_that_is_missing_is_noted() -> None:
    assert "gone.sh, which is not beside it" in followed("bash gone.sh\n").notes[0]
    assert followed("source activate env\n").notes == []
