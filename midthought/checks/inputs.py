"""Checks of what a run is given and what it needs: tasks, lengths, tokenizer and chat template, calls; memory, disk, servers, and
settings with which the policy can change. They need no sampling and no reward."""

from __future__ import annotations

import contextlib
import inspect
import math
import os
import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import fmean

from midthought.checks.examination import History, Setup, SkippedError
from midthought.checks.registry import Finding, check
from midthought.engines.policy_engine import check_backend
from midthought.env.answer_matching import normalised
from midthought.env.episode import QuestionEnvironment
from midthought.errors import DataError, SettingsError
from midthought.learning.optimizer import ADAM_EPSILON, TrainingSchedule, learning_rate_factor
from midthought.models.pretrained import is_on_this_machine
from midthought.plan.hardware import GIB
from midthought.rollout.written import example_calls, play, written
from midthought.tokenization import Renderer
from midthought.types import Task, ToolOutcome, Trajectory

MIN_TASKS = 4
"""With fewer tasks, equal answers and repeated prompts are not reported."""
MAX_SHARE = 0.1
"""Share of the held-out prompts that may also be training prompts, and of the answers that may be too long."""
NUM_TEXTS = 32
OWN_TEMPLATE = "give the tokenizer the model's own chat template"
OWN_END = "set tokenizer.eos_token to the token with which the model ends its answers"
_TASK = Task(task_id="check", prompt="Who?", answer="")
_ANSWER, _USER = {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}
MIN_TRAINED_SHARE, MAX_KL_COEF = 1e-3, 1.0
"""Share of the weights that learn, without adapters (a single layer of a large model has more); coefficient of a KL penalty."""
MIN_CHANGE, MIN_STEP, USUAL_WEIGHT = 5e-8, 1e-3, 0.02
"""Change of the weights per step, relative to their size (the smallest learning rates in use, 1e-7, reach 4e-7), and to the peak
learning rate (AdamW's is 0.1 to 1); size of a trained matrix' weights."""


@check("tasks", "fit")
def tasks(setup: Setup) -> Iterator[Finding]:
    """Gold answers are there and differ; prompts occur once, with one answer, and are not held-out ones as well."""
    num_tasks, num_rows = len(setup.known_tasks), len(setup.all_tasks)
    answers: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for task in setup.all_tasks:
        answers[_read(task)].add(normalised(task.answer))
    given = [task.answer for task in setup.tasks if task.answer.strip()]
    if 0 < len(given) < num_tasks:
        observation = f"{num_tasks - len(given)} of {num_tasks} tasks have an empty gold answer"
        yield Finding(observation, "complete these rows or leave them out")
    if len(given) >= MIN_TASKS and len(set(map(normalised, given))) == 1:
        yield Finding(
            f"all {len(given)} gold answers are {given[0]!r:.60}", "map the right column to 'answer' (load_tasks)"
        )
    num_asking = sum(text.rstrip().endswith("?") for text in given)
    if num_asking > 0.5 * num_tasks > sum(task.prompt.rstrip().endswith("?") for task in setup.tasks):
        yield Finding(f"{num_asking} of {len(given)} gold answers end with '?'", "swap question and answer (columns)")
    if num_rows >= MIN_TASKS and len(answers) < 0.5 * num_rows:
        observation = f"{num_rows} tasks have {len(answers)} different prompt{'s' * (len(answers) != 1)}"
        yield Finding(observation, "give every question once: training.group_size sets the number of its episodes")
    if unclear := [key[-1][-60:] for key, found in answers.items() if len(found) > 1]:
        observation = f"{len(unclear)} of {len(answers)} prompts have several gold answers, for example {unclear[0]!r}"
        yield Finding(observation, "keep one row per prompt, with further right answers as aliases")
    shared = [task.prompt[-60:] for task in setup.held_out if _read(task) in answers]
    if len(shared) > MAX_SHARE * len(setup.held_out):
        observation = f"{len(shared)} of {len(setup.held_out)} held-out prompts are training prompts: {shared[0]!r}"
        yield Finding(observation, "leave them out of the training data")


def _read(task: Task) -> tuple[str, ...]:
    """Returns what the policy reads."""
    return (*(message["content"] for message in task.before), task.prompt)


@check("lengths", "fit")
def lengths(setup: Setup) -> Iterator[Finding]:
    """The longest prompts leave room for an answer, and a gold answer alone fits into `inference.max_tokens`."""
    parts, limit = setup.parts, setup.config.inference.max_tokens
    prompts = [len(parts.renderer.prompt(parts.messages(task))) for task in setup.known_tasks]
    if long := [length for length in prompts if length >= parts.max_seq_len]:
        observation = f"{len(long)} of {len(prompts)} prompts have up to {max(long)} of {parts.max_seq_len} tokens"
        remedy = "raise inference.max_seq_len, or shorten the prompts and the descriptions of the tools"
        yield Finding(observation, remedy, policy="stop" if len(long) == len(prompts) else "warn")
    answers = [len(parts.renderer.foreign(task.answer)) + 1 for task in setup.tasks if task.answer]
    if len(long := [length for length in answers if length > limit]) > MAX_SHARE * len(answers):
        observation = f"{len(long)} of {len(answers)} gold answers have up to {max(long)} tokens: max_tokens={limit}"
        yield Finding(observation, f"set inference.max_tokens above {2 * max(long)}")


@check("tokens", "fit")
def tokens(setup: Setup) -> Iterator[Finding]:
    """Texts decode to themselves, the model has a row for every token, the token that ends an answer is in no answer. The chat
    template starts an answer, and appends a later turn to the earlier ones."""
    parts, some = setup.parts, setup.tasks[:NUM_TEXTS]
    renderer, ends = parts.renderer, parts.renderer.eos_token_ids
    texts = [text for task in some for text in (task.prompt, task.answer) if text] or ["Ada: 12 × 3 = 36."]
    back = [renderer.decode(renderer.foreign(text)) for text in texts]
    if changed := [f"{a[:60]!r} becomes {b[:60]!r}" for a, b in zip(texts, back, strict=True) if a != b]:
        observation = f"{len(changed)} of {len(texts)} texts change when they are encoded and decoded: {changed[0]}"
        yield Finding(observation, "use the model's own tokenizer")
    size = getattr(getattr(parts.model, "get_input_embeddings", lambda: None)(), "num_embeddings", None)
    if size is not None and (largest := max(renderer.tokenizer.get_vocab().values())) >= size:
        used = max((max(renderer.prompt(parts.messages(task))) for task in some), default=0)
        observation = f"the tokenizer has the token id {largest}, and the model has {size} embeddings"
        remedy = "call model.resize_token_embeddings(len(tokenizer))"
        yield Finding(observation, remedy, policy="stop" if used >= size else "warn")
    if not ends:
        yield Finding("no token ends an answer, so every episode continues until inference.max_tokens", OWN_END)
    scripts: list[Trajectory] = []
    for task in some if ends else ():
        with contextlib.suppress(DataError, SettingsError):  # an answer that looks like a call, or has a control token
            scripts += [written(parts, task, task.answer)] if task.answer and len(scripts) < 4 else []
    if early := ends.intersection(token for each in scripts for token in each.sampled_runs()[-1][:-1]):
        yield Finding(f"the token {renderer.decode([min(early)])!r} ends an answer, and is also inside one", OWN_END)
    said = getattr(getattr(parts.model, "generation_config", None), "eos_token_id", None)
    own = {said} if isinstance(said, int) else set(said or ())
    if own and ends and own.isdisjoint(ends):
        theirs, ours = (", ".join(renderer.decode([each]) for each in sorted(some)) for some in (own, ends))
        yield Finding(f"the model ends an answer with {theirs!r}, and the tokenizer with {ours!r}", OWN_END)
    if renderer.chat_template.is_given:
        yield from _of_template(renderer, setup)


def _of_template(renderer: Renderer, setup: Setup) -> Iterator[Finding]:
    with contextlib.suppress(SettingsError):
        prompt = renderer.prompt([_USER], add_generation_prompt=False)
        answer = renderer.decode(renderer.prompt([_USER, _ANSWER], add_generation_prompt=False)[len(prompt) :])
        names_roles = answer.partition(_ANSWER["content"])[0].strip()  # Mistral's template, for example, does not
        if prompt == renderer.prompt([_USER]) and names_roles:
            yield Finding("a prompt with add_generation_prompt equals one without: no answer is started", OWN_TEMPLATE)
    if not setup.has_replies:
        return
    try:
        renderer.following([_USER])
    except SettingsError as error:
        yield Finding(f"the chat template cannot add a turn to a conversation: {error}", OWN_TEMPLATE, policy="stop")
        return
    if setup.config.inference.keep_thoughts and not renderer.only_appends:
        yield Finding("the chat template changes earlier turns if one is added", "set inference.keep_thoughts=false")


@check("calls", "fit")
def calls(setup: Setup) -> Iterator[Finding]:
    """A call of every tool is written in the call format, found token by token, and run with the same arguments. Its result is
    inserted after it, and the mask covers exactly what the policy wrote."""
    parts, task = setup.parts, setup.tasks[0] if setup.tasks else _TASK
    found = list(example_calls(parts.registry))
    if len(parts.registry) and not found:
        raise SkippedError("no example arguments fit the schemas of the tools")
    other = f"choose another call_format than {parts.call_format.name!r}, or simpler names and types of the parameters"
    for name, arguments in found:
        call, tool = (name, arguments), parts.registry.get(name)
        try:
            inspect.signature(tool.execute if tool else play).bind(**arguments)
        except TypeError as error:
            observation = f"every call of {name!r} fails: its execute does not take {[*arguments]} ({error})"
            yield Finding(observation, "give execute the parameters of the tool's definition", name)
        except ValueError:  # a function of C has no signature
            pass
        try:
            script = written(parts, task, "Ada", call=call, result="Ada Lovelace")
        except (DataError, SettingsError) as error:
            said = str(error).partition(", and they are")[0]
            yield Finding(f"a call of {name!r} is not read back as it is written: {said:.200}", other, name)
            continue
        episode = play(parts, setup.config.inference, script, lambda task: QuestionEnvironment(), "Ada Lovelace")
        ran = [((each.call.tool_name, dict(each.call.parameters)), each.outcome) for each in episode.tool_events]
        if ran != [(call, ToolOutcome.OK)]:
            said = episode.error or str([event.call.result for event in episode.tool_events])
            yield Finding(f"an episode that calls {name!r} does not run this call ({said:.120})", other, name)
        elif (episode.token_ids, episode.loss_mask) != (script.token_ids, script.loss_mask):
            yield Finding(f"an episode that calls {name!r} has other tokens or another mask than written", other, name)


@check("machine", "fit")
def machine(setup: Setup) -> Iterator[Finding]:
    """The model is here, and the run fits into the memory and its checkpoints on the disk."""
    name = setup.config.model.local_path if setup.choice is None else setup.choice.source
    checkpoint = setup.config.checkpoint
    if name and setup.policy is None and not is_on_this_machine(name):
        yield Finding(f"the model {name!r} is not on this machine", f"hf download {name}, or correct model.local_path")
    if setup.choice is None:
        raise SkippedError("the run is not planned")
    setup.choice.require_possible()
    if setup.path is None or (plan := setup.choice.plan) is None:
        return
    folder = next(path for path in (setup.path.resolve(), *setup.path.resolve().parents) if path.is_dir())
    free = shutil.disk_usage(folder).free if os.access(folder, os.W_OK) else 0
    trained = 4 * plan.adapter_parameters if plan.lora_rank else plan.learned.weights
    one = trained + plan.learned.masters + plan.learned.moments
    num_iters = setup.config.training.num_iters(len(setup.all_tasks) or None)
    count = min(checkpoint.keep_last_n, num_iters) + 1  # the best
    needed = (count + 1) * one + plan.width * plan.shape.parameters
    if needed > free:
        observation = f"{folder} takes {free / GIB:.1f} GiB, and {count} checkpoints of this run {needed / GIB:.1f} GiB"
        remedy = f"lower checkpoint.keep_last_n={checkpoint.keep_last_n}, or set run_path (--run) to a larger disk"
        yield Finding(observation, remedy, policy="stop" if 2 * one > free else "warn")


@check("servers", "check")
def servers(setup: Setup) -> Sequence[Finding]:
    """The servers of the policy answer, with the right model and usable log-probabilities."""
    inference = setup.config.inference
    check_backend(inference)
    if inference.engine == "local" or inference.in_process or not inference.base_url:
        return ()
    if not (name := inference.served_model_name or setup.config.model.local_path):
        raise SkippedError("inference.served_model_name does not name the model of the servers")
    from midthought.engines.external_backends import check_servers

    renderer = None if setup.policy is None else setup.policy.renderer
    check_servers(inference, name, renderer, None if setup.source is None else setup.source.parts.engine)
    return ()


@check("movement", "fit")
def movement(setup: Setup) -> Iterator[Finding]:
    """Learning rate, schedule, clipping and KL penalty let the policy change, its weights learn, dynamic sampling has groups."""
    training = setup.config.training
    weights = [(each.numel(), each.requires_grad) for each in getattr(setup.parts.model, "parameters", list)()]
    trained, total = sum(number for number, learns in weights if learns), sum(number for number, _ in weights)
    schedule = TrainingSchedule.from_config(setup.config, training.num_iters(len(setup.all_tasks) or None))
    steps = range(0, schedule.total_steps or 1, max(1, (schedule.total_steps or 1) // 100))
    factor = fmean(learning_rate_factor(step, training, schedule.total_steps) for step in steps)
    history = History(setup.config.to_dict())
    if name := hindrance(history, factor * training.peak_learning_rate, max(trained, 1)):
        observation = f"{name}={history.setting(name)} keeps the policy as it is in all {schedule.total_steps} steps"
        yield Finding(observation, f"leave {name} at its default")
    if trained < MIN_TRAINED_SHARE * total and not hasattr(setup.parts.model, "peft_config"):
        remedy = "call model.requires_grad_(True), or train adapters (model.lora_rank)"
        yield Finding(f"{trained:,} of the {total:,} weights of the policy learn", remedy, "frozen")
    for name in ("kl_coef", "kl_loss_coef"):
        if (coefficient := getattr(training, name)) > MAX_KL_COEF:
            yield Finding(f"training.{name}={coefficient:g} (usual: 0.001 to 0.1)", f"lower training.{name}", name)
    if (number := training.max_dynamic_batches) > 1 and "groups" not in training.needs:
        observation = f"training.max_dynamic_batches={number} has no effect: {training.adv_estimator} has no groups"
        yield Finding(observation, "set it to 1, or training.adv_estimator to grpo", "dynamic sampling")


def hindrance(history: History, rate: float, num_weights: float = 1e6) -> str:
    """Returns the setting that keeps the policy as it is; empty if none does. `rate`: the mean one, after its schedule."""
    peak = history.setting("training.learning_rate", rate)
    gradient = min(history.setting("training.max_grad_norm", 1.0), 1.0) / math.sqrt(num_weights)
    if peak / USUAL_WEIGHT < MIN_CHANGE:
        return "training.learning_rate"
    if rate < 0.05 * peak:
        return "training.warmup_steps"
    return "training.max_grad_norm" if gradient / (gradient + ADAM_EPSILON) < MIN_STEP else ""
