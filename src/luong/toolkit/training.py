"""One explicit training loop, on Hugging Face Accelerate."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from accelerate import Accelerator
from accelerate.utils import set_seed
from rich.console import Console

from luong.toolkit import processes, runs, weights
from luong.toolkit.checkpoints import Checkpoints, State
from luong.toolkit.config import Config, Training
from luong.toolkit.corpus import Pair
from luong.toolkit.errors import ToolkitError, UsageError
from luong.toolkit.learning import Learner, finite
from luong.toolkit.logs import Log, make_console, require_tensorboard
from luong.toolkit.optimization import rate
from luong.toolkit.preparing import Prepared, prepare
from luong.toolkit.stopping import Stop, Stopped
from luong.toolkit.translating import Translator, build_model
from luong.toolkit.validation import key, validate
from luong.toolkit.weights import Meaning


def train(config: Config, out: Path, seconds: float | None = None) -> int:
    """Train the model of `config` into the folder `out`, from where an earlier call stopped.

    A finished run is left as it is. Ctrl-C, SIGTERM and the end of `seconds` leave a checkpoint.
    Returns the exit status: 0, or 128 and the number of the signal.
    """
    stop = Stop(seconds)
    accelerator = processes.make_accelerator()
    console = make_console(quiet=not accelerator.is_main_process)
    try:
        if runs.is_finished(config, out):
            console.print(f"{out}: this run is finished; there is nothing to do")
            return 0
        start = starting_point(config)
        if config.training.tensorboard:
            require_tensorboard()
        claim = runs.claimed(config, out) if accelerator.is_main_process else nullcontext()
        with claim, processes.connected():
            with accelerator.main_process_first():
                known = (start.source, start.target) if start else None
                prepared = prepare(config.data, out, console, known)
            learner = begin(config, prepared, start, out, accelerator, console)
            translator = Translator(learner.judged, prepared.source, prepared.target)
            meaning = weights.meaning(config, prepared.source, prepared.target)
            with stop:
                loop(learner, translator, prepared.dev, meaning, stop, out, console)
        return 0
    except Stopped as stopped:
        state = Checkpoints(out / "checkpoints").state()
        update = state.update if state else 0
        console.print(f"{out}: stopped at update {update:,} ({stopped}); the same command goes on")
        return stopped.status
    finally:
        accelerator.end_training()


def starting_point(config: Config) -> Translator | None:
    """The model of training.init_from, if it is of the shape that `config` describes."""
    if config.training.init_from is None:
        return None
    folder = Path(config.training.init_from)
    translator = Translator.load(folder)
    shape = ("model.", "data.source.", "data.target.")
    free = ("model.dropout:", "model.init_range:")  # what the weights do not depend on
    differences = [
        difference
        for difference in Config.of_run(folder).differences(config)
        if difference.startswith(shape) and not difference.startswith(free)
    ]
    if differences:
        raise UsageError(
            f"training.init_from: {folder} has other settings ({'; '.join(differences)})"
        )
    return translator


def begin(
    config: Config,
    prepared: Prepared,
    start: Translator | None,
    out: Path,
    accelerator: Accelerator,
    console: Console,
) -> Learner:
    """The learner of a run, as its last checkpoint knows it, or fresh."""
    set_seed(config.training.seed)
    model = build_model(config, prepared.source, prepared.target)
    if start is not None:
        model.load_state_dict(start.model.state_dict())
    learner = Learner(config.training, accelerator, model, prepared)
    checkpoints = Checkpoints(out / "checkpoints")
    if checkpoints.paths():
        learner.load(*checkpoints.load())
    if accelerator.is_main_process:
        runs.save_vocabularies(out, prepared.source, prepared.target)
    updates = processes.gather([learner.state.update])
    if len(set(updates)) > 1:
        raise ToolkitError(f"{out}: processes see checkpoints of different updates: {updates}")
    console.print(
        f"{len(prepared.train):,} pairs to learn from, {len(prepared.dev):,} to validate with; "
        f"{len(prepared.source)} source and {len(prepared.target)} target symbols; "
        f"{sum(p.numel() for p in model.parameters()):,} parameters; on {accelerator.device}"
        + (f" and {len(updates) - 1} more" if len(updates) > 1 else "")
    )
    if learner.state.update:
        console.print(f"going on from update {learner.state.update:,}")
    return learner


def loop(
    learner: Learner,
    translator: Translator,
    dev: Sequence[Pair],
    meaning: Meaning,
    stop: Stop,
    out: Path,
    console: Console,
) -> None:
    """All updates, with a validation now and then; `out` always holds what is needed to go on."""
    settings, state, main = learner.settings, learner.state, learner.accelerator.is_main_process
    checkpoints = Checkpoints(out / "checkpoints", settings.keep)

    def keep(*, show: bool) -> None:
        if main:
            checkpoints.save(state, learner.tensors())
            if show:
                runs.publish(out, state, learner.judged, meaning)

    if main and checkpoints.paths():
        runs.publish(out, state, learner.judged, meaning)  # in case it was killed before that
    tensorboard = out / "tensorboard" if settings.tensorboard and main else None
    with Log(console, state, settings.updates, tensorboard) as log:
        learner.begin()
        while not state.finished:
            if validation_is_due(state, settings):
                keep(show=False)  # so that stopping in the middle of what follows loses nothing
                with stop.at_once():
                    found = validate(translator, dev, settings.metric)
                better = record(state, settings, found)
                keep(show=True)
                log.validation(state.rows[-1], better)
                learner.begin()
                continue
            learner.update()
            is_checkpoint = state.update % settings.checkpoint_every == 0
            due = validation_is_due(state, settings)
            if not (learner.looks or is_checkpoint or due):
                continue
            loss, tokens, seconds, votes = learner.look(stop.votes())
            log.update(state, loss, tokens, seconds, rate(settings, state.update - 1))
            reason = stop.reason(votes)
            if reason or is_checkpoint:
                keep(show=reason is not None)
            if reason:
                raise reason


def validation_is_due(state: State, settings: Training) -> bool:
    """Whether the state is one to validate, and was not validated yet."""
    at = state.update % settings.validate_every == 0 or state.update >= settings.updates
    return at and state.update > state.validated


def record(state: State, settings: Training, dev: dict[str, float]) -> bool:
    """Add a row of metrics, and decide whether to go on. Returns whether it is the best row."""
    row: dict[str, float] = {
        "update": state.update,
        "epoch": state.place.epoch,
        "learning_rate": rate(settings, state.update - 1),
        "train_loss": state.loss / max(state.tokens, 1),
    }
    finite(dev["loss"], state.update)
    state.rows.append(row | {f"dev_{name}": value for name, value in dev.items()})
    state.loss, state.tokens = 0.0, 0
    last = len(state.rows) - 1
    better = state.best is None or key(dev, settings.metric) < state.best
    if better:
        state.best, state.best_row = key(dev, settings.metric), last
    patient = settings.patience is None or last - state.best_row < settings.patience
    state.finished = state.update >= settings.updates or not patient
    return better
