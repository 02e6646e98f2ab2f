"""`mesa-lens check`: its checks of a model and of methods on it, and their order."""

import copy
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mesa.checking.oracle import Positions, Seen, attention_output, rotated, seen_by
from mesa.checking.rows import FAILED, NOT_RUN, NOTE, PASSED, CheckRow, Comparison, Report, worst_row
from mesa.checking.subject import (
    ALLOWED,
    MOST_PRETENDED,
    STEPS,
    AttentionCall,
    Calls,
    PromptSizes,
    Subject,
    array,
    before_rotation,
    max_difference,
    perturbed,
    record_method,
    rounding_perturbed,
    run,
)
from mesa.device import check_finite
from mesa.engine.bridge import adapted, bridge, sharing_weights
from mesa.engine.plug import Attachment, applied, check_free
from mesa.engine.structure import new_cache, state_of, windows as windows_of_model
from mesa.errors import Refused, is_out_of_memory
from mesa.families import Family, passed
from mesa.methods import LMInfinite, Method, NoPE, Origin, ReRoPE
from mesa.methods.base import check_length
from mesa.outside import with_cache
from mesa.plan import Plan, rotary_base, turn_alike
from mesa.progress import Bar
from mesa.settings import make_methods
from mesa.support import as_trained_text, check_config, is_rotary, length_choice, trained_length as stated_length, unfit

HOOKS = "bridge against hidden states"
"""A check's name."""

_NO_TOKENIZER = "no tokenizer was passed; the rest does without"


def model_note(subject: Subject, stated: int | None) -> CheckRow:
    """The model's dtypes and devices, and the M that other commands will use."""
    weights = list(subject.model.parameters())
    dtypes = ", ".join(sorted({str(weight.dtype).removeprefix("torch.") for weight in weights}))
    devices = ", ".join(sorted({str(weight.device) for weight in weights}))
    config = subject.model.config
    try:
        by_config = stated or length_choice(config) or f"M = {stated_length(config)}, by the config"
        if not config._name_or_path:
            by_config = f"{by_config}, which was read from no file: it may be transformers' default"
        window = f"M = {stated}, as stated" if stated else by_config
    except Refused:
        window = "no M in the config: give --trained-length"
    return CheckRow("model", NOTE, f"{dtypes} on {devices}; {window}")


def first_token(subject: Subject) -> CheckRow:
    """What the tokenizer puts before a text; failed where it gives tokens that the model does not have."""
    name, tokenizer = "first token", subject.tokenizer
    if tokenizer is None:
        return CheckRow(name, NOT_RUN, _NO_TOKENIZER)
    unrotated = tokenizer(" hello hello", add_special_tokens=False)["input_ids"]
    ids = tokenizer(" hello hello")["input_ids"]
    known = subject.model.get_input_embeddings().num_embeddings
    if max(ids, default=0) >= known:
        detail = f"the tokenizer gives token {max(ids)} and the model knows {known}; they are two models'"
        return CheckRow(name, FAILED, detail)
    count = next((at for at in range(len(ids)) if ids[at : at + len(unrotated)] == unrotated), 0)
    if not count:
        detail = "nothing: a prompt of one repeated word carries no positions; `mesa-lens probe` puts a token before it"
        return CheckRow(name, NOTE, f"{detail}, and prompts of your own need one")
    tokens = ", ".join(f"{tokenizer.convert_ids_to_tokens(token)!r} ({token})" for token in ids[:count])
    bos = " (bos)" if ids[0] == tokenizer.bos_token_id else ""
    return CheckRow(name, NOTE, f"{tokens}{bos}")


def hooks(subject: Subject, method: Method) -> CheckRow:
    """The residual stream at the bridge's hooks, and its logits, against Hugging Face's states, under a method."""
    devices = {weight.device for weight in subject.model.parameters()}
    if len(devices) > 1:
        return CheckRow(
            HOOKS, NOT_RUN, f"the model lies on {len(devices)} devices, and mesa.bridge takes models on one"
        )
    if subject.tokenizer is None:
        return CheckRow(HOOKS, NOT_RUN, _NO_TOKENIZER)
    if adapted(type(subject.model)) is None:
        kind = type(subject.model).__name__
        return CheckRow(
            HOOKS, NOT_RUN, f"TransformerLens has no adapter for a {kind}: states are the layers' own output"
        )
    setting = subject.settings[-1]
    ids, stock = subject.ids(setting.length), subject.stock[setting]
    method = subject.acting(method, 0)
    with applied(subject.model, method):
        output = run(subject.model, ids, output_hidden_states=True)
    states = output.hidden_states
    with torch.no_grad():  # a bridge changes the modules that it wraps and the tokenizer: copies
        built: Any = bridge(sharing_weights(subject.model), copy.deepcopy(subject.tokenizer))
        with applied(built.original_model, method):
            logits, cache = built.run_with_cache(ids, names_filter=lambda hook: hook.endswith("hook_resid_post"))
    hooked = {layer + 1: cache["resid_post", layer] for layer in range(len(states) - 2)}
    off, mistake = (max_difference(other, output.logits) for other in (logits, stock.logits))
    comparisons = [Comparison(off, stock.allowed, mistake, "logits")]  # all that a method in the last layer changes
    for layer in range(subject.model.config.num_hidden_layers - 1):  # the last one's are normed
        difference, mistake = (max_difference(other[layer + 1], states[layer + 1]) for other in (hooked, stock.states))
        comparisons.append(Comparison(difference, stock.allowed_states[layer + 1], mistake, f"after layer {layer}"))
    detail = f"hook_resid_post and logits under {method.name}"
    return worst_row(
        HOOKS, "", comparisons, detail, "use the Hugging Face model and mesa.applied; report it with this table"
    )


def weights(subject: Subject) -> CheckRow:
    """Whether all weights are numbers."""
    try:
        check_finite("checked", subject.model)
    except Refused as error:
        return CheckRow("weights are numbers", FAILED, str(error).removeprefix("model 'checked': "))
    return CheckRow("weights are numbers", PASSED, "every tensor of the checkpoint")


def states(subject: Subject) -> CheckRow:
    """Whether the stock model's states and logits are numbers."""
    for setting in subject.settings:
        stock = subject.run_stock(setting)
        for layer, states in enumerate((*stock.states, stock.logits)):
            if not states.isfinite().all():
                what = "the logits" if layer == len(stock.states) else f"the states that enter layer {layer}"
                detail = f"{what} are not finite at {setting.length} tokens; run it with --dtype float32"
                return CheckRow("states are numbers", FAILED, detail)
    return CheckRow("states are numbers", PASSED, "every layer of the stock model, and its logits")


def stock_against_origin(subject: Subject) -> CheckRow:
    """The stock model against Origin."""
    comparisons = []
    for setting in subject.settings:
        subject.record_stock(setting)
        stock, logits = subject.stock[setting], []
        turns = not stock.positions or not all(at.none for at in stock.positions)
        for method in (Origin, NoPE if turns else LMInfinite):
            with applied(subject.model, subject.acting(method(trained_length=subject.pretended), 0)):
                logits.append(run(subject.model, subject.ids(setting.length)).logits)
        difference, mistake = (max_difference(other, stock.logits) for other in logits)
        comparisons.append(Comparison(difference, stock.allowed, mistake, f"at {setting.length} tokens"))
    remedy = "attached methods do not see this model's attention; use none of them on it, and report it with this table"
    return worst_row(
        "stock against origin", "", comparisons, "logits of the stock model and with Origin attached", remedy
    )


def carried_state(subject: Subject) -> list[CheckRow]:
    """What the model's layers that carry a state get right, tried; none where no layer does."""
    state = state_of(subject.model) if is_rotary(subject.model.config.model_type) else None
    return [] if state is None else [CheckRow("carried state", NOTE, str(state))]


def rotary(subject: Subject) -> CheckRow:
    """The queries and keys of every layer that rotates, and the rotation by its rotary module's frequencies."""
    name = "rotary"
    if not is_rotary(subject.model.config.model_type):
        return CheckRow(name, NOT_RUN, "the model has no rotary embeddings")
    setting = subject.settings[-1]
    stock = subject.stock[setting]
    turning = [number for number, at in enumerate(stock.positions) if not at.none]
    if not turning:
        return CheckRow(name, NOT_RUN, "none of the model's layers rotates its queries and keys")
    comparisons = [_rotary_layer(subject, setting, number) for number in turning]
    detail = "queries and keys as the model rotates them and as its rotary module's frequencies say"
    remedy = "this layer gives tokens other positions, so that methods would remap distances it does not use"
    return worst_row(name, "", comparisons, detail, remedy)


def windows(subject: Subject) -> Iterator[CheckRow]:
    """Whether the layers' sliding windows are filled at the lengths of the check; no row where there are none."""
    tried = subject.settings[-1].length
    sizes = sorted({size for stock in subject.stock.values() for size in stock.calls.windows})
    unfilled = [size for size in sizes if size + STEPS > tried]  # so that a window also moves in decoding
    if not sizes:
        return
    name, shown = "sliding windows", ", ".join(map(str, sizes))
    if not unfilled:
        yield CheckRow(name, NOTE, f"of {shown} tokens; filled at {tried}")
    if text := as_trained_text(windows_of_model(subject.model), subject.trained_length):
        yield CheckRow("layers of methods", NOTE, text)
    if not unfilled:
        return
    needed = -(-(unfilled[-1] + STEPS) // 3)
    remedy = f"use --pretended {needed}" if needed <= MOST_PRETENDED else "no --pretended fills it"
    yield CheckRow(name, NOT_RUN, f"of {shown} tokens; {unfilled[-1]} are not filled at {tried}; {remedy}")


def _rotary_layer(subject: Subject, setting: PromptSizes, number: int) -> Comparison:
    """The comparison of an attention call; the mistake is one position."""
    stock = subject.stock[setting]
    call, unrotated, at = stock.calls.functions[number], stock.unrotated[number], stock.positions[number]
    index = np.arange(float(setting.length))
    blur, dtype, largest = setting.length * 2.0**-24, subject.model.dtype, np.zeros(3)
    both = ((call.query, unrotated.query), (call.key, unrotated.key))
    for (theirs, ours), weight in zip(both, (None, None) if at.weights is None else at.weights, strict=True):
        turned = partial(rotated, positions=at, weight=weight)
        for head in range(ours.shape[1]):
            state, got = array(ours[0, head]), array(theirs[0, head])
            true = turned(state, index)
            off = perturbed(turned(perturbed(state, dtype, 0), index + blur), dtype, 1)
            differences = [abs(other - true).max() for other in (got, off, turned(state, index + 1))]
            largest = np.maximum(largest, differences)
    return Comparison(
        float(largest[0]), ALLOWED * float(largest[1]), float(largest[2]), f"in layer {call.attends.layer}"
    )


def restored(subject: Subject) -> CheckRow:
    """Whether the stock model computes what it did before."""
    name, setting = "restored", subject.settings[-1]
    difference = max_difference(run(subject.model, subject.ids(setting.length)).logits, subject.stock[setting].logits)
    row = CheckRow(name, PASSED, "logits of the stock model before and after", difference=difference, allowed=0.0)
    if difference == 0:
        return row
    return replace(row, result=FAILED, detail=f"{row.detail}; load the model again")


CHECKS = {
    "fused against dense": ("logits of both executors", "use executor='dense', and report it with this table"),
    "fused against pairs": (
        "attention outputs against float64 sums over pairs",
        "do not use this method on this model, and report it with this table",
    ),
    "decoding against one pass": (
        "logits of tokens decoded one by one with the cache",
        "use generate(use_cache=False, ...) with prompt_length stated, and report it with this table",
    ),
    "left padding against none": (
        "logits of a row padded on the left, in a batch",
        "give prompts one by one, and report it with this table",
    ),
}
"""What each check compares, and what to do where it failed."""

_PADDING = 7


def method_rows(subject: Subject, method: Method) -> Iterator[CheckRow]:
    """A row for each of `CHECKS`, each over all settings; not run where the model cannot have the method."""
    try:
        if why := unfit(subject.model.config, type(method)):
            raise Refused(why)
        method = subject.acting(method)
    except Refused as error:
        yield from (CheckRow(check, NOT_RUN, str(error), method.name) for check in CHECKS)
        return
    comparisons: dict[str, list[Comparison]] = defaultdict(list)
    last = subject.settings[-1]
    mistake = 0.0
    for setting in reversed(subject.settings):
        stock, ids = subject.stock[setting], subject.ids(setting.length)
        with (
            applied(subject.model, method, prompt_length=setting.prompt) as attachment,
            record_method(attachment) as calls,
        ):
            fused = run(subject.model, ids).logits
        comparisons["fused against pairs"] += against_pairs(subject, setting, attachment, calls)
        if setting == last:
            nope = subject.acting(NoPE(trained_length=subject.pretended), 0)
            other = _logits(subject, nope, setting, "fused") if method.uses_model_rope else fused
            mistake = max_difference(other, stock.logits)
        results = {
            "fused against dense": _logits(subject, method, setting, "dense"),
            "decoding against one pass": _decoded(subject, method, setting),
        }
        if attachment.state is None or attachment.state.left_padding:
            results["left padding against none"] = _left_padded(subject, method, setting)
        for check, logits in results.items():
            reference, where = fused[:, -logits.shape[1] :], f"at {setting.length} tokens"
            plans = (method.plan(length, setting.prompt) for length in setting)
            if check == "decoding against one pass" and not turn_alike(*plans):  # earlier tokens had other frequencies
                reference = _decoded(subject, method, setting, "dense")
                where += ", against dense decoding since frequencies follow the length"
            difference, allowed = max_difference(logits, reference), stock.allowed
            if widened := difference > allowed:  # a method may amplify what rounding does
                with rounding_perturbed(subject.model):
                    allowed = max(allowed, ALLOWED * max_difference(_logits(subject, method, setting, "fused"), fused))
            comparisons[check].append(Comparison(difference, allowed, mistake, where, widened))
    for check, (detail, remedy) in CHECKS.items():
        if check in comparisons:
            yield worst_row(check, method.name, comparisons[check], detail, remedy)
        else:
            yield CheckRow(check, NOT_RUN, "refused: padding would change the state that layers carry", method.name)


def _logits(subject: Subject, method: Method, setting: PromptSizes, executor: str) -> Tensor:
    """Of a setting's tokens, in one pass."""
    with applied(subject.model, method, executor=executor, prompt_length=setting.prompt):
        return run(subject.model, subject.ids(setting.length)).logits


def _decoded(subject: Subject, method: Method, setting: PromptSizes, executor: str = "fused") -> Tensor:
    """Of the tokens after the prompt, one by one."""
    ids, cache = subject.ids(setting.length), new_cache(subject.model)
    parts = []
    with applied(subject.model, method, executor=executor):
        for part in (ids[:, : setting.prompt], *ids[:, setting.prompt :].split(1, 1)):
            parts.append(run(subject.model, part, **with_cache(subject.model, cache)).logits)
    return torch.cat(parts[1:], 1)


def _left_padded(subject: Subject, method: Method, setting: PromptSizes) -> Tensor:
    """Of a setting's tokens, behind padding, in addition to a longer row of other tokens."""
    ids, other = subject.ids(setting.length), subject.ids(setting.length + _PADDING, row=1)
    batch = torch.cat([torch.cat([other[:, :_PADDING], ids], 1), other])
    mask = torch.ones_like(batch)
    mask[0, :_PADDING] = 0
    with applied(subject.model, method, prompt_length=setting.prompt + _PADDING):
        return run(subject.model, batch, attention_mask=mask).logits[:1, _PADDING:]


_LAYERS, _HEADS, _TOKENS = 6, 2, 6


def against_pairs(subject: Subject, setting: PromptSizes, attachment: Attachment, calls: Calls) -> Iterator[Comparison]:
    """Comparisons in some layers."""
    plans = [
        method.plan(setting.length, setting.prompt)
        for method in (Origin(trained_length=subject.pretended), attachment.method)
    ]
    unrotated = before_rotation(subject.model, subject.ids(setting.length), calls)
    for number in _some(range(len(calls.functions)), _LAYERS):
        call = calls.functions[number]
        plan = plans[attachment.method.heads_in(call.attends.layer) != ()]
        if attachment.slopes is None:
            at = _scaled(subject.stock[setting].positions[number], plan)
        else:
            at = Positions(slopes=attachment.slopes.double().numpy())
        where = f"in layer {call.attends.layer} at {setting.length} tokens"
        yield _of_layer(call, unrotated[number], plan, at, subject.model.dtype, where)


def _of_layer(
    call: AttentionCall, unrotated: AttentionCall, plan: Plan, at: Positions, dtype: torch.dtype, where: str
) -> Comparison:
    """The largest difference, with what rounding makes, and what every distance one too large would.

    Where no position enters, the mistake is a key too few.
    """
    query, keys, values = (array(states[0]) for states in (unrotated.query, unrotated.key, call.value))
    group, output, largest = len(query) // len(keys), array(call.output[0]), np.zeros(3)
    for token in _some(range(1, plan.length), _TOKENS):
        seen = seen_by(plan, token, None if unrotated.seen is None else unrotated.seen[token].cpu().numpy())
        there = seen.query_position
        farther = seen._replace(query_position=there + (seen.keys < token))  # all but itself: the nearest mistake
        if at.none:
            farther = Seen(*(part[1:] for part in seen)) if len(seen.keys) > 1 else seen
        sign = np.random.default_rng(4).choice((-1.0, 1.0), len(seen.keys))
        blurred = seen._replace(query_position=there + plan.length * 2**-24 * sign)  # as float32 angles are
        for head in _some(range(len(query)), _HEADS):
            states = query[head, token], keys[head // group], values[head // group]
            sink = None if call.sinks is None else float(call.sinks[head])
            noisy = perturbed(states[0], dtype, 0), perturbed(states[1], dtype, 1), perturbed(states[2], dtype, 2)
            true, rounded, mistaken = (
                attention_output(given, pairs, call.scaling, at, head, call.softcap, sink)
                for given, pairs in ((states, seen), (noisy, blurred), (states, farther))
            )
            others = output[token, head], perturbed(rounded, dtype, 3), mistaken
            largest = np.maximum(largest, [np.nan_to_num(abs(other - true), nan=np.inf).max() for other in others])
    difference, rounding, mistake = largest.tolist()
    return Comparison(difference, ALLOWED * rounding, mistake, where)


def _scaled(at: Positions, plan: Plan) -> Positions:
    """Positions with the plan's frequencies."""
    if plan.frequency_scale is None or at.frequencies is None:
        return at
    number = np.arange(len(at.frequencies), dtype=np.float64)
    scale = plan.frequency_scale(number, 2 * len(number), rotary_base(at.frequencies))
    return replace(at, frequencies=at.frequencies * scale)


def _some(items: Sequence[int], count: int) -> list[int]:
    """At most `count` of the items, evenly spread, the first and the last among them."""
    places = np.linspace(0, len(items) - 1, min(count, len(items))).round().astype(int)
    return [items[index] for index in dict.fromkeys(places.tolist())]


# The order of the checks

PRETENDED = 64
"""The M that methods are made for while they are checked, in tokens."""

_LEAST = 24


def check(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    *,
    methods: str = "all",
    trained_length: int | None = None,
    pretended: int = PRETENDED,
    minutes: float | None = None,
    name: str | None = None,
    family: Family | None = None,
) -> Report:
    """Whether methods are computed correctly on a model.

    Model and tokenizer are left unchanged.

    Args:
        model: A Hugging Face model in evaluation mode.
        tokenizer: Its tokenizer; None: checks that ask for one are not run.
        methods: Names separated by commas; default 'all'.
        trained_length: M in tokens; default the config's.
        pretended: The M that methods are made for, in tokens, so that they act at lengths a machine can do: prompts are
            a little shorter and three times as long. Default 64.
        minutes: No check begins after so many; default no limit.
        name: The model's name in the report; default the config's.
        family: As for `mesa.applied`.

    Returns:
        A `Report`: `rows`, one a check; `print` gives a table.

    Raises:
        Refused: The model is not supported, in training mode or has a method attached, or a number is out of range.

    Examples:
        >>> loaded = mesa.load()
        >>> report = mesa.check(loaded.model, loaded.tokenizer, methods="rerope", pretended=32, name="default")
        >>> print(str(report).splitlines()[0])
        default: 10 passed, 0 failed, 0 not run
    """
    with passed(model.config.model_type, family):
        return _checked(model, tokenizer, methods, trained_length, pretended, minutes, name)


def _checked(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    methods: str,
    trained_length: int | None,
    pretended: int,
    minutes: float | None,
    name: str | None,
) -> Report:
    check_config(model.config)
    check_free(model)
    if model.training:
        raise Refused("the model is in training mode; call model.eval() first")
    if not _LEAST <= pretended <= MOST_PRETENDED:
        raise Refused(f"pretended={pretended} is not within {_LEAST} to {MOST_PRETENDED} tokens")
    if trained_length is not None:
        check_length("check", "trained_length", trained_length, 2)
    try:
        reached = stated_length(model.config) if trained_length is None else trained_length
    except Refused:  # nothing states M
        reached = pretended
    subject = Subject(model, tokenizer, pretended, reached)
    steps = _steps(subject, make_methods(methods, pretended), trained_length)
    with torch.no_grad():
        rows = tuple(_rows(steps, minutes))
    lengths = tuple(setting.length for setting in subject.settings)
    return Report(name or model.config._name_or_path or type(model).__name__, rows, pretended, lengths)


_NEEDED = {"weights are numbers", "states are numbers", "stock against origin"}
"""Checks after which no other makes sense where they fail or are not run."""

_Step = tuple[Sequence[str], str, Callable[[], Iterable[CheckRow]]]
"""Checks, their method if any, and what computes their rows."""


def _steps(subject: Subject, methods: dict[str, Method], stated: int | None) -> list[_Step]:
    """All steps, each after those it needs."""
    changing = [method for method in methods.values() if not method.uses_model_rope]
    tried = changing[-1] if changing else ReRoPE(trained_length=subject.pretended)

    def step(check: str, run: Callable[..., CheckRow], *given: Any) -> _Step:
        return [check], "", lambda: [run(subject, *given)]

    return [
        step("model", model_note, stated),
        step("first token", first_token),
        step("weights are numbers", weights),
        step("states are numbers", states),
        step("stock against origin", stock_against_origin),
        (["carried state"], "", lambda: carried_state(subject)),
        step("rotary", rotary),
        (["sliding windows"], "", partial(windows, subject)),
        *((list(CHECKS), name, partial(method_rows, subject, method)) for name, method in methods.items()),
        step(HOOKS, hooks, tried),
        step("restored", restored),
    ]


def _rows(steps: list[_Step], minutes: float | None) -> Iterator[CheckRow]:
    """The steps' rows, behind a progress bar after two seconds; 'not run' after one that is needed and did not pass.

    A step that raises gives a failed row of each check, or not run for want of memory.
    """
    begun, why = time.monotonic(), ""
    for checks, method, rows_of in Bar(steps, desc="checking", unit="check", delay=2):
        if not why and minutes is not None and time.monotonic() - begun > 60 * minutes:
            why = f"{minutes:g} minutes were over; give more --minutes or fewer --methods"
        said, result, rows = why, NOT_RUN, list[CheckRow]()
        try:
            rows += () if why else rows_of()
        except Exception as error:
            said = " ".join(str(error).split())
            if is_out_of_memory(error):
                said = f"{said or 'no memory'}; use a smaller --pretended, or a device with more memory"
            else:
                said, result = f"{type(error).__name__}: {said}", FAILED
                said += "" if isinstance(error, RuntimeError | ValueError) else "; report it with this table"
        if said:
            rows = [CheckRow(check, result, said, method) for check in checks]
        yield from rows
        ended = {row.result for row in rows if row.check in _NEEDED and row.difference is None} & {FAILED, NOT_RUN}
        if ended and not why:
            why = f"{checks[0]!r} {'failed' if FAILED in ended else 'was not run'}"
