"""One explicit training loop, on Hugging Face Accelerate."""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors.torch import save as serialized
from torch import Tensor
from torch.nn import functional as F

from luong.seq2seq import Seq2Seq
from luong.seq2seq.model import PAD
from luong.toolkit import batches, corpus
from luong.toolkit.batches import Batch, Example
from luong.toolkit.config import Config, Training
from luong.toolkit.corpus import Pair
from luong.toolkit.errors import ToolkitError
from luong.toolkit.evaluating import evaluate
from luong.toolkit.translating import Translator, build_model
from luong.toolkit.vocabulary import Vocabulary

METRICS = ("update", "train_loss", "dev_loss", "dev_per", "dev_wer", "seconds")


def train(config: Config, out: Path) -> None:
    """Train the model of `config` into the folder `out`; a finished run is left as it is."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    accelerator = Accelerator()
    if accelerator.num_processes > 1:
        raise ToolkitError("training on several processes is not supported yet: start one")
    if is_finished(config, out):
        console.print(f"{out}: this run is finished; there is nothing to do")
        return
    set_seed(config.training.seed)
    train_pairs, dev_pairs = corpus.read(config.data.train), corpus.read(config.data.dev)
    source = Vocabulary.build(config.data.source, (pair.source for pair in train_pairs))
    target = Vocabulary.build(config.data.target, (pair.target for pair in train_pairs))
    create_folder(config, out, source, target)
    model = build_model(config, source, target)
    console.print(
        f"{len(train_pairs):,} pairs to learn from, {len(dev_pairs):,} to validate with; "
        f"{len(source)} source and {len(target)} target symbols; "
        f"{sum(p.numel() for p in model.parameters()):,} parameters; on {accelerator.device}"
    )
    loop(
        config.training,
        accelerator,
        Translator(model, source, target),
        examples(train_pairs, source, target),
        dev_pairs,
        out,
        console,
    )


def loop(
    settings: Training,
    accelerator: Accelerator,
    translator: Translator,
    data: Sequence[Example],
    dev_pairs: Sequence[Pair],
    out: Path,
    console: Console,
) -> None:
    """All updates, with a validation now and then; `out` keeps the best weights."""
    optimizer = torch.optim.AdamW(
        translator.model.parameters(),
        lr=settings.learning_rate,
        betas=(0.9, 0.98),
        weight_decay=settings.weight_decay,
        fused=True,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: rate(settings, done))
    model, optimizer = accelerator.prepare(translator.model, optimizer)
    stream = batches.endless(data, settings.batch_size, settings.seed)
    best, losses, tokens, seconds = math.inf, list[float](), 0, 0.0
    with progress_bar(console) as bar, (out / "metrics.csv").open("w", newline="") as file:
        metrics = csv.writer(file)
        metrics.writerow(METRICS)
        task = bar.add_task("training", total=settings.updates, loss=math.nan, speed=0.0)
        for update in range(1, settings.updates + 1):
            began = time.monotonic()
            batch = next(stream).to(accelerator.device)
            model.train()
            loss = cross_entropy(model, batch, settings.label_smoothing)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), settings.clip_norm)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()

            losses.append(finite(loss.item(), update))
            tokens += int((batch.target != PAD).sum())
            seconds += time.monotonic() - began  # validation is not counted
            bar.update(task, advance=1, loss=mean(losses[-100:]), speed=tokens / seconds)
            if update % settings.validate_every and update != settings.updates:
                continue

            dev = validate(translator, dev_pairs, settings.batch_size)
            if dev["per"] <= best:  # before the row that may say that the run is finished
                best = dev["per"]
                save(translator.model, out / "model.safetensors")
            metrics.writerow([update, mean(losses), *dev.values(), round(seconds, 1)])
            file.flush()
            losses.clear()
            bar.console.print(
                f"update {update}: dev loss {dev['loss']:.4f}, PER {dev['per']:.2f} %, "
                f"WER {dev['wer']:.2f} %"
            )


def cross_entropy(model: Seq2Seq, batch: Batch, smoothing: float = 0.0) -> Tensor:
    """Mean over the target symbols of a batch, END included."""
    logits = model(batch.source, batch.lengths, batch.previous)
    return F.cross_entropy(
        logits.flatten(0, 1),
        batch.target.flatten(),
        ignore_index=PAD,
        label_smoothing=smoothing,
    )


@torch.inference_mode()
def validate(translator: Translator, pairs: Sequence[Pair], size: int) -> dict[str, float]:
    """Cross-entropy per target symbol, and the error rates of what the model puts out."""
    model = translator.model.eval()
    total, symbols = 0.0, 0
    for chunk in batches.by_length(examples(pairs, translator.source, translator.target), size):
        batch = batches.collate(chunk).to(translator.device)
        count = int((batch.target != PAD).sum())
        total += cross_entropy(model, batch).item() * count
        symbols += count
    rates = evaluate(translator, pairs)
    return {"loss": total / symbols, "per": rates.per, "wer": rates.wer}


def rate(settings: Training, done: int) -> float:
    """The learning rate's factor after `done` updates: linear warm-up, then a cosine down to 0."""
    if done < settings.warmup:
        return (done + 1) / (settings.warmup + 1)
    decay = (done - settings.warmup) / max(1, settings.updates - settings.warmup)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, decay)))


def examples(pairs: Sequence[Pair], source: Vocabulary, target: Vocabulary) -> list[Example]:
    """The symbols of `pairs`."""
    sides = (
        source.encode([pair.source for pair in pairs]),
        target.encode([pair.target for pair in pairs]),
    )
    return [Example(*sides) for sides in zip(*sides, strict=True)]


def is_finished(config: Config, out: Path) -> bool:
    """Whether `out` holds this run, done. An `out` that is no place for this run is refused."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    if not (out / "config.yaml").is_file():
        raise ToolkitError(f"{out}: holds something that is not a run; choose another --out")
    differences = Config.load(out / "config.yaml").differences(config)
    if differences:
        raise ToolkitError(
            f"{out}: holds a run with other settings ({'; '.join(differences)}); "
            "choose another --out, or remove it"
        )
    if not (out / "model.safetensors").is_file() or not (out / "metrics.csv").is_file():
        return False
    with (out / "metrics.csv").open(newline="") as file:
        updates = [row["update"] for row in csv.DictReader(file)]
    return updates[-1:] == [str(config.training.updates)]


def create_folder(config: Config, out: Path, source: Vocabulary, target: Vocabulary) -> None:
    """All of a model but its weights."""
    out.mkdir(parents=True, exist_ok=True)
    config.save(out / "config.yaml")
    source.save(out / "source.json")
    target.save(out / "target.json")


def save(model: Seq2Seq, path: Path) -> None:
    """Write the weights, whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.write_bytes(serialized(model.state_dict()))
    partial.replace(path)


def finite(loss: float, update: int) -> float:
    """`loss`, or the end of a run that cannot be saved any more."""
    if math.isfinite(loss):
        return loss
    raise ToolkitError(
        f"the loss became {loss} at update {update}; try a smaller --training.learning_rate"
    )


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def progress_bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TextColumn("{task.fields[speed]:,.0f} tokens/s"),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console,
    )
