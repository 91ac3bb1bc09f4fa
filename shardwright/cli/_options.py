"""Arguments and options that several commands share, so that they read alike everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A preset (see `models`), a hub id, a config.json or its folder, or module:factory.",
    ),
]
Cluster = Annotated[
    str,
    typer.Option(
        metavar="C",
        help="A catalogue name (see `clusters`), NAME:NODES, a profile file, `local`, or"
        " ACCELERATOR:GxN[,memory=..][,intra=..][,inter=..]; several joined by +, then"
        " [,between=..][,latency=..].",
    ),
]
MaybeModel = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODEL]",
        help="A preset (see `models`), a hub id, a config.json or its folder, or module:factory;"
        " may be left out where --from-megatron states it.",
    ),
]
MaybeCluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="C",
        help="A catalogue name (see `clusters`), NAME:NODES, a profile file, `local`, or"
        " ACCELERATOR:GxN[,memory=..][,intra=..][,inter=..]; several joined by +, then"
        " [,between=..][,latency=..]. Counts may come from --from-megatron.",
    ),
]
Script = Annotated[
    Path | None,
    typer.Option(
        "--from-megatron",
        metavar="FILE",
        help="Take model, batch, devices and layout from a Megatron-LM launch script; MODEL and"
        " other options then hold against it.",
    ),
]
Variables = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="A variable of the script; 1 is its first argument."
    ),
]
More = Annotated[
    str | None,
    typer.Option("--add", metavar="OPTIONS", help="Options behind those of the script."),
]
PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.")]

Gpus = Annotated[int | None, typer.Option(min=1, help="Devices in all.")]
Nodes = Annotated[int | None, typer.Option(min=1, help="Nodes in all.")]
GlobalBatch = Annotated[
    str | None, typer.Option(metavar="B", help="Sequences per step; default about 4 M tokens.")
]
SeqLen = Annotated[
    str | None,
    typer.Option(
        metavar="S", help="Tokens per sequence, 8k = 8192; default the model's, 8192 at most."
    ),
]
Precision = Annotated[
    str | None, typer.Option(metavar="P", help="fp32, fp16, bf16, fp8, ...; default bf16.")
]
Optimizer = Annotated[
    str | None,
    typer.Option(metavar="O", help="adamw (default), adamw-8bit, adafactor, muon, sgd."),
]
GradientDType = Annotated[
    str | None,
    typer.Option(metavar="D", help="Of gradient sums: fp32, bf16, fp16; default by precision."),
]
Trainable = Annotated[
    str, typer.Option(help="What is trained: full, lora:RANK, qlora:RANK, frozen:TOWER.")
]
Stack = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Which software runs it (see `stacks`); default ours where it was measured, else"
        " mature software of today.",
    ),
]
Fix = Annotated[str | None, typer.Option(help="Choices to keep, named as in estimate: tp=8,pp=4.")]
Forbid = Annotated[str | None, typer.Option(help="Choices to rule out: cp,ep,zb-v,zero=3.")]
Tokens = Annotated[str | None, typer.Option(metavar="T", help="Tokens to train on in all: 2T.")]
Deadline = Annotated[
    str | None, typer.Option(metavar="T", help="Time that the run to --tokens may take: 60d.")
]

Force = Annotated[bool, typer.Option("--force", help="Overwrite whatever the output path holds.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
