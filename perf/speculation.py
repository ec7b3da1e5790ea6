"""What speculation gains by kind of task: the engine with and without it, on the same prompts in one run.

Reads Spec-Bench's questions (hemingkx/Spec-Bench, one JSON object a line with `task` and `turns`), which are
not part of this project, and asks the first turn of each in the chat template. Each prompt is answered
by both engines, one after the other; that the answers are the same is checked.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

import click
from tqdm import tqdm

from bench import environment, prepared_model
from targets import EngineTarget, Generation
from uzu_contract.request import ChatPrompt


@dataclass
class Task:
    """Results of one kind of task."""

    speedups: list[float] = field(default_factory=list)
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    different: int = 0

    def add(
        self, plain: list[Generation], plain_s: float, guessed: list[Generation], guessed_s: float
    ) -> None:
        """Book one batch."""
        self.speedups.append(plain_s / guessed_s)
        self.tokens += sum(len(g.token_ids) for g in guessed)
        self.drafted += sum(g.drafted for g in guessed)
        self.accepted += sum(g.accepted for g in guessed)
        self.different += sum(a.token_ids != b.token_ids for a, b in zip(plain, guessed, strict=True))


async def answer(
    target: EngineTarget, prompts: list[list[int]], max_tokens: int
) -> tuple[list[Generation], float]:
    """A batch's generations, and its seconds."""
    began = time.perf_counter()
    generations = await asyncio.gather(*(target.generate(prompt, max_tokens) for prompt in prompts))
    return list(generations), time.perf_counter() - began


async def run(
    questions: dict[str, list[str]], batch: int, max_tokens: int, options: dict[str, object]
) -> dict[str, Task]:
    """Results by task."""
    folder, _ = prepared_model()
    plain = EngineTarget(folder, speculation="off", prefix_cache=False)
    guessing = EngineTarget(folder, prefix_cache=False, **options)
    tasks: dict[str, Task] = {}
    total = sum(len(texts) for texts in questions.values())
    with tqdm(total=total, unit="prompt", disable=None) as bar:
        for name, texts in questions.items():
            task = tasks[name] = Task()
            for begin in range(0, len(texts), batch):
                prompts = [
                    plain.prompts.encode(ChatPrompt(messages=({"role": "user", "content": text},)))
                    for text in texts[begin : begin + batch]
                ]
                # Who goes first changes, so that a machine that slows down does so for both.
                pair = [plain, guessing]
                order = pair if begin // batch % 2 else pair[::-1]
                results = {target: await answer(target, prompts, max_tokens) for target in order}
                task.add(*results[plain], *results[guessing])
                bar.update(len(prompts))
    for target in (plain, guessing):
        await target.close()
    return tasks


@click.command()
@click.option("--data", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--per-task", default=20, show_default=True, type=click.IntRange(1, 1000))
@click.option("--batch", default=1, show_default=True, type=click.IntRange(1, 64))
@click.option("--output-tokens", default=128, show_default=True, type=click.IntRange(1, 4000))
@click.option("--speculation", default="ngram", type=click.Choice(["ngram", "draft", "ngram+draft"]))
@click.option("--draft-model", type=click.Path(exists=True, file_okay=False, resolve_path=True))
def main(
    data: Path, per_task: int, batch: int, output_tokens: int, speculation: str, draft_model: str | None
) -> None:
    """Measure what speculation gains by kind of task."""
    where = environment("speculation.py")
    questions: dict[str, list[str]] = {}
    for line in data.read_text("utf-8").splitlines():
        question = json.loads(line)
        texts = questions.setdefault(question["task"], [])
        if len(texts) < per_task:
            texts.append(question["turns"][0])
    options: dict[str, object] = {"speculation": speculation, "draft_model": draft_model}
    tasks = asyncio.run(run(questions, batch, output_tokens, options))
    click.echo(f"{speculation}: greedy, up to {output_tokens} tokens out, batches of {batch},")
    click.echo(f"{per_task} prompts a task.\n")
    click.echo("| task | speed-up, mean (lowest) | guesses accepted | tokens a step | answers that differ |")
    click.echo("|---|---|---|---|---|")
    for name, task in tasks.items():
        share = f"{task.accepted / task.drafted:.0%}" if task.drafted else "none made"
        per_step = task.tokens / max(1, task.tokens - task.accepted)
        click.echo(
            f"| {name} | {statistics.fmean(task.speedups):.2f} × ({min(task.speedups):.2f}) | {share} | "
            f"{per_step:.2f} | {task.different} |"
        )
    click.echo("\n" + "\n".join(f"{key}: {value}" for key, value in where.items()))


if __name__ == "__main__":
    main()
