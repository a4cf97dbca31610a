"""The folder of a run: its checks, its lock, and the files that follow from a checkpoint.

The last checkpoint holds all that the other files show: the settings, the rows of metrics.csv, and
the hash of the best weights. Missing or damaged files are written again from it if possible.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from torch import nn

from luong.toolkit.config import Config, Data
from luong.toolkit.errors import ToolkitError
from luong.toolkit.files import replacing
from luong.toolkit.inference import weights
from luong.toolkit.inference.translator import Translator
from luong.toolkit.inference.weights import Meaning
from luong.toolkit.text.vocabulary import Vocabulary
from luong.toolkit.training import metrics, run_files
from luong.toolkit.training.checkpoints import Checkpoints, Damaged, TrainingState
from luong.toolkit.training.learner import Learner, judged
from luong.toolkit.training.optimization import rate
from luong.toolkit.training.progress import Journal

# The settings that a run may be given other values of. None changes what the weights mean, and the
# checkpoint has hashes of the data.
_FREE = (
    "data.train",
    "data.dev",
    "data.test",
    "training.updates",
    "training.patience",
    "training.validate_every",
    "training.checkpoint_every",
    "training.keep",
    "training.tensorboard",
)


def checkpoints(out: Path, keep: int = 1) -> Checkpoints:
    return Checkpoints(out / "checkpoints", keep)


def is_finished(config: Config, out: Path) -> bool:
    """Return whether `out` holds this run, finished and intact. Refuse an unsuitable `out`."""
    if out.exists() and not out.is_dir():
        raise ToolkitError(f"{out}: expected a folder, got a file")
    run_files.require_own(out)
    if run_files.is_new(out):
        return False
    try:
        state = checkpoints(out).state()
    except Damaged:
        return False
    before = _settings(out, state)
    _require_fitting(config, before, state, out)
    training = config.training
    return (
        state is not None
        and state.is_done(training.updates, training.patience)
        and not before.differences(config)
        and _is_whole(out, state)
    )


@contextmanager
def claimed(config: Config, out: Path, journal: Journal) -> Iterator[None]:
    """Hold the folder `out`, made where it is missing, for this run and this process only.

    A run that fails before its first checkpoint leaves nothing that it made.
    """
    found = {path for path in (out, out / run_files.LOCK) if path.exists()}
    out.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(
            out / run_files.LOCK, blocking=False
        ):  # the kernel releases it, however this process ends
            found |= run_files.existing(out) - {out, out / run_files.LOCK}
            try:
                is_finished(config, out)  # somebody may have been here between that and the lock
                run_files.remove_partial(out)
                journal.keep(out / run_files.LOG)
                _begin(config, out, journal)
                yield
            except (ToolkitError, OSError) as error:
                journal.note(str(error))
                if not checkpoints(out).paths():
                    run_files.remove(out, found)
                raise
    except Timeout as error:
        raise ToolkitError(f"{out}: another training is at work in this folder") from error


def _begin(config: Config, out: Path, journal: Journal) -> None:
    """Set damaged checkpoints aside, and write the settings of the last one to config.yaml."""
    for text in checkpoints(out).set_damaged_aside():
        journal.say(f"{text}; going on from the one before")
    state = checkpoints(out).state()
    if state is None:
        _write(out / "config.yaml", config.text)
        return
    before = _settings(out, state)
    _require_fitting(config, before, state, out)
    if state.settings and _content(out / "config.yaml") != state.settings:
        _write(out / "config.yaml", state.settings)
        journal.say(f"{out / 'config.yaml'}: lost or changed; written again from the checkpoint")
    if changes := config.differences(before):
        journal.say(f"going on with other settings than before ({'; '.join(changes)})")
    old, new = (rate(settings.training, state.update - 1) for settings in (before, config))
    if old != new:
        journal.say(
            f"the learning rate of the next update is {rate(config.training, state.update):.3g}; "
            f"that of the last was {old:.3g}, and would have been {new:.3g} if training.updates "
            f"had been {config.training.updates:,} from the start"
        )


def save_vocabularies(
    out: Path, data: Data, vocabularies: Sequence[Vocabulary], journal: Journal, *, again: bool
) -> None:
    """Write the vocabularies that are not there; in a run that goes on, `again`, say so."""
    names, sides = ("source.json", "target.json"), (data.source, data.target)
    for name, side, vocabulary in zip(names, sides, vocabularies, strict=True):
        try:
            if Vocabulary.load(out / name, side).digest == vocabulary.digest:
                continue
            reason = f"{out / name}: another vocabulary than that of this run"
        except ToolkitError as error:
            reason = str(error)
        with replacing(out / name) as path:
            vocabulary.save(path)
        if again:
            journal.say(f"{reason}; written again")


def publish(out: Path, state: TrainingState, model: nn.Module, meaning: Meaning) -> None:
    """Write the files that follow from a checkpoint with the weights of `model`."""
    if state.is_best:
        weights.save(out / "model.safetensors", model, meaning)
    for name in _stale(out, state):
        _write(out / name, _shown(state)[name])


def restore(out: Path, learner: Learner, meaning: Meaning, journal: Journal) -> None:
    """Write the files that follow from the checkpoint of `learner`, if they are missing or bad.

    If the best weights are lost, raise an error and write nothing.
    """
    state, path = learner.state, out / "model.safetensors"
    wanted = weights.digest(learner.judged, meaning) if state.is_best else state.weights
    try:
        kept = _weights(out)
        reason = f"{path}: not the weights that the last checkpoint tells of"
    except ToolkitError as error:
        kept, reason = "", str(error) if path.exists() else f"{path}: lost"
    if kept and wanted in ("", kept):  # older versions kept no hash
        state.weights = kept
    elif kept and checkpoints(out).lost_after(state.update):
        state.weights = kept
        journal.say(f"{path}: of a later update, and kept until there are better ones")
    else:
        model, name = _best(out, learner, wanted, meaning, reason)
        weights.save(path, model, meaning)
        state.weights = weights.digest(model, meaning)
        if state.rows:  # otherwise it was killed before it had written any
            journal.say(f"{reason}; written again from {name}")
    for name in _stale(out, state):
        before, text = _content(out / name), _shown(state)[name]
        _write(out / name, text)
        if state.rows and not (before and text.startswith(before)):  # not merely out of date
            journal.say(f"{out / name}: lost or changed; written again from the last checkpoint")


def _best(
    out: Path, learner: Learner, wanted: str, meaning: Meaning, reason: str
) -> tuple[nn.Module, str]:
    """Return the model of the best weights, from the checkpoint that has them, and its name."""
    state, found = learner.state, checkpoints(out)
    if state.is_best:
        return learner.judged, found.paths()[-1].name
    update = int(state.rows[state.best_row]["update"])
    path = found.path(update)
    if path in found.paths():
        try:
            _, tensors = found.load(learner.expected(), update=update)
            model = copy.deepcopy(learner.judged)
            model.load_state_dict(judged(tensors))
            if wanted in ("", weights.digest(model, meaning)):
                return model, path.name
        except Damaged as error:
            reason = f"{reason}; {error}"
    raise ToolkitError(
        f"{reason}; no whole checkpoint holds the best weights, those of update {update:,}: put a "
        "copy of it back, or choose another --out"
    )


def _settings(out: Path, state: TrainingState | None) -> Config:
    """Return the settings of the run in `out`: those of its checkpoint, or of config.yaml."""
    if state is not None and state.settings:
        return Config.parse(checkpoints(out).paths()[-1], state.settings.encode())
    if not (out / "config.yaml").is_file():
        raise ToolkitError(f"{out}: holds something that is not a run; choose another --out")
    return Config.of_run(out)


def _require_fitting(
    config: Config, before: Config, state: TrainingState | None, out: Path
) -> None:
    """Refuse settings with which the run in `out` cannot go on."""
    differences = [
        difference
        for difference in before.differences(config)
        if state is None or difference.split(":")[0] not in _FREE
    ]
    if differences:
        raise ToolkitError(
            f"{out}: holds a run with other settings ({'; '.join(differences)}); "
            "choose another --out, or remove it"
        )
    if state is None and (out / "model.safetensors").exists():
        raise ToolkitError(
            f"{out}: holds a model, but no checkpoint to go on from; choose another --out, "
            "or remove it"
        )
    if state is not None and config.training.updates < state.update:
        raise ToolkitError(
            f"training.updates: expected at least {state.update:,}, which are done in {out}, got "
            f"{config.training.updates:,}"
        )


def _is_whole(out: Path, state: TrainingState) -> bool:
    """Return whether the files of a run and its last checkpoint are as they were written."""
    try:
        checkpoints(out).load()
        return not _stale(out, state) and state.weights in ("", _weights(out))
    except ToolkitError:
        return False


def _weights(out: Path) -> str:
    """Return the hash of the weights in the folder. Raises `ToolkitError` if they are bad."""
    translator = Translator.load(out)
    meaning = weights.meaning(Config.of_run(out), translator.source, translator.target)
    return weights.digest(translator.model, meaning)


def _shown(state: TrainingState) -> dict[str, str]:
    """Return the contents of the files that follow from a state; older states lack settings."""
    settings = {"config.yaml": state.settings} if state.settings else {}
    return settings | {"metrics.csv": metrics.text(state.rows)}


def _stale(out: Path, state: TrainingState) -> list[str]:
    return [name for name, text in _shown(state).items() if _content(out / name) != text]


def _content(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8") if path.is_file() else None
    except UnicodeDecodeError:
        return None


def _write(path: Path, text: str) -> None:
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")
