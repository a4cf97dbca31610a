"""The training loop, on Hugging Face Accelerate."""

from __future__ import annotations

import shlex
from contextlib import nullcontext
from pathlib import Path

from accelerate import Accelerator
from accelerate.utils import set_seed

from luong.toolkit.config import Config, Training
from luong.toolkit.errors import ToolkitError, UsageError
from luong.toolkit.inference import weights
from luong.toolkit.inference.translator import Translator, build_model
from luong.toolkit.training import processes, run_folder
from luong.toolkit.training.checkpoints import TrainingState
from luong.toolkit.training.learner import Learner, finite
from luong.toolkit.training.optimization import rate
from luong.toolkit.training.preparing import Prepared, prepare
from luong.toolkit.training.progress import (
    Journal,
    Log,
    make_console,
    measured,
    require_tensorboard,
)
from luong.toolkit.training.stopping import Stop, Stopped
from luong.toolkit.training.validation import key, validate


def train(config: Config, out: Path, seconds: float | None = None) -> int:
    """Train the model of `config` into the folder `out`, from where an earlier call stopped.

    A finished run is left as it is. Ctrl-C, SIGTERM, SIGHUP and the end of `seconds` leave a
    checkpoint. Returns the exit status: 0, or 128 and the number of the signal.
    """
    stop = Stop(seconds)
    accelerator = processes.make_accelerator()
    main = accelerator.is_main_process
    journal = Journal(make_console(quiet=not main))
    try:
        if all(processes.gather([run_folder.is_finished(config, out)])):
            journal.say(f"{out}: this run is finished; there is nothing to do")
            journal.say("to train it longer: the same command with more --training.updates")
            return 0
        start = starting_point(config)
        if config.training.tensorboard:
            require_tensorboard()
        claim = run_folder.claimed(config, out, journal) if main else nullcontext()
        with claim, processes.connected():
            with accelerator.main_process_first():
                known = (start.source, start.target) if start else None
                prepared = prepare(config.data, out, journal, known)
            learner = begin(config, prepared, start, out, accelerator, journal)
            try:
                with stop:
                    loop(learner, config, prepared, stop, out, journal)
            except Stopped as stopped:
                update = learner.state.update
                journal.say(
                    f"{out}: stopped at update {update:,} ({stopped}); the same command goes on"
                )
                return stopped.status
            for line in ending(learner.state, config, prepared.dev[0].source, out):
                journal.say(line)
        return 0
    finally:
        accelerator.end_training()


def starting_point(config: Config) -> Translator | None:
    """Return the model of training.init_from, if it is of the shape that `config` describes."""
    if config.training.init_from is None:
        return None
    folder = Path(config.training.init_from)
    translator = Translator.load(folder)
    shape = ("model.", "data.source.", "data.target.")
    free = (
        "model.dropout:",
        "model.init_range:",
    )  # settings that do not change the meaning of weights
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
    journal: Journal,
) -> Learner:
    """Return the learner of a run, in the state of its last checkpoint or new."""
    set_seed(config.training.seed)
    model = build_model(config, prepared.source, prepared.target)
    if start is not None:
        model.load_state_dict(start.model.state_dict())
    learner = Learner(config.training, accelerator, model, prepared)
    checkpoints = run_folder.checkpoints(out)
    again = bool(checkpoints.paths())
    if again:
        learner.load(checkpoints)
    if accelerator.is_main_process:
        vocabularies = (prepared.source, prepared.target)
        run_folder.save_vocabularies(out, config.data, vocabularies, journal, again=again)
    updates = processes.gather([learner.state.update])
    if len(set(updates)) > 1:
        raise ToolkitError(f"{out}: processes see checkpoints of different updates: {updates}")
    journal.say(
        f"{len(prepared.train):,} pairs to learn from, {len(prepared.dev):,} to validate with; "
        f"{len(prepared.source)} source and {len(prepared.target)} target symbols; "
        f"{sum(p.numel() for p in model.parameters()):,} parameters; on {accelerator.device}"
        + (f" and {len(updates) - 1} more" if len(updates) > 1 else "")
    )
    if learner.state.update:
        journal.say(f"going on from update {learner.state.update:,}")
    return learner


def loop(
    learner: Learner, config: Config, prepared: Prepared, stop: Stop, out: Path, journal: Journal
) -> None:
    """Do all updates and validations; `out` always holds what is needed to resume."""
    settings, state, main = config.training, learner.state, learner.accelerator.is_main_process
    translator = Translator(learner.judged, prepared.source, prepared.target)
    meaning = weights.meaning(config, prepared.source, prepared.target)
    checkpoints = run_folder.checkpoints(out, settings.keep)

    def keep(*, show: bool) -> None:
        if main:
            if state.is_best:
                state.weights = weights.digest(learner.judged, meaning)
            checkpoints.save(state, learner.tensors())
            if show:
                run_folder.publish(out, state, learner.judged, meaning)

    def is_over() -> bool:
        return state.is_done(settings.updates, settings.patience)

    if main and state.update:
        run_folder.restore(out, learner, meaning, journal)
    before, state.settings = state.settings, config.text
    if state.update and before != state.settings:
        keep(show=True)
    tensorboard = out / "tensorboard" if settings.tensorboard and main else None
    with Log(journal, state, settings.updates, tensorboard) as log:
        learner.begin()
        while not is_over():
            if validation_is_due(state, settings):
                log.progress()
                keep(show=False)  # saved first, so that nothing is lost if validation is stopped
                with stop.at_once():
                    found = validate(translator, prepared.dev, settings.metric)
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


def validation_is_due(state: TrainingState, settings: Training) -> bool:
    """Return whether it is time to validate, and this state has not been validated yet."""
    at = state.update % settings.validate_every == 0 or state.update >= settings.updates
    return at and state.update > state.validated


def record(state: TrainingState, settings: Training, dev: dict[str, float]) -> bool:
    """Add a row of metrics. Returns whether it is the best."""
    row: dict[str, float] = {
        "update": state.update,
        "epoch": state.place.epoch,
        "learning_rate": rate(settings, state.update - 1),
        "train_loss": state.loss / max(state.tokens, 1),
    }
    finite(dev["loss"], state.update)
    state.rows.append(row | {f"dev_{name}": value for name, value in dev.items()})
    state.loss, state.tokens = 0.0, 0
    better = state.best is None or key(dev, settings.metric) < state.best
    if better:
        state.best, state.best_row = key(dev, settings.metric), len(state.rows) - 1
    return better


def ending(state: TrainingState, config: Config, example: str, out: Path) -> list[str]:
    """Return the last messages: why training ended, the best weights, and what to do next."""
    settings, best, place = config.training, state.rows[state.best_row], shlex.quote(str(out))
    if state.update >= settings.updates:
        reason, more = f"finished: all {settings.updates:,} updates are done", "updates"
    else:
        count = len(state.rows) - 1 - state.best_row
        reason = (
            f"finished at update {state.update:,} of {settings.updates:,}: "
            f"{count:,} validations without a better one (training.patience)"
        )
        more = "patience"
    data = "" if config.data.test else " --data FILE"
    return [
        f"{out}: {reason}",
        f"the best was update {int(best['update']):,}: {measured(best)}; its weights are in "
        f"{out / 'model.safetensors'}",
        f"to measure it: luong evaluate {place}{data}",
        f"to use it: luong translate {place} {shlex.quote(example)}",
        f"to train it longer: the same command with more --training.{more}",
    ]
