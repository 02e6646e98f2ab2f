"""Do states collapse because heads average more values? rule.md, "Is it dispersion?"; 2 minutes on one core.

python research/collapse/cause.py        # writes results/default-heads.csv and default-norms.csv
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2]))

import mesa
from mesa.decoder import layers_of, removed
from mesa.methods import Method
from mesa.support import trained_length
from probe.eval_tasks.retrieval import first_ids
from probe.eval_tasks.score import heldout_ids, text_windows
from probe.eval_tasks.tasks import tail_prompts
from probe.statistics import half_width
from probe.thresholds.state_distance import StateReference
from research.collapse.run import BATCH, DILUTION, RESULTS, methods_of, states
from research.script import load_options, make_parser, run

TIMES, WINDOWS = (1, 2, 4), 24
CONFIGS = ("origin", DILUTION, "rerope")


def main(args: argparse.Namespace) -> None:
    """Measures norms and entropies, then losses with norms restored; writes both tables."""
    loaded = mesa.load(args.model, **load_options(args))
    model, trained = loaded.model, args.trained_length or trained_length(loaded.model.config)
    windows = text_windows(heldout_ids(loaded.tokenizer), max(TIMES) * trained, WINDOWS, trained // 4)
    prompts = {times: tail_prompts(windows, first_ids(loaded.tokenizer), times * trained) for times in TIMES}
    methods = methods_of(trained, CONFIGS)
    inside = norms(model, methods["origin"], prompts[1], slice(None))  # (layer, head, text)
    least = torch.from_numpy(inside.mean(-1)).float()
    fitted = StateReference.fit(states(model, methods["origin"], prompts[1], trained)[0][0])
    heads, losses = list[dict[str, Any]](), list[dict[str, Any]]()
    entropy = {times: entropies(model, prompts[times], trained) for times in TIMES}
    for name, method in methods.items():
        last = {times: norms(model, method, prompts[times], slice(-(trained // 4), None)) for times in TIMES}
        for times in TIMES[1:]:
            ratio = np.log(last[times] / last[1])
            for layer, head in np.ndindex(ratio.shape[:2]):
                change = entropy[times][layer, head] - entropy[1][layer, head]
                tests = 1 - 0.05 / ratio[..., 0].size
                row = {"config": name, "length": times * trained, "layer": layer, "head": head}
                row |= {
                    "log_ratio": ratio[layer, head].mean(),
                    "log_ratio_width": half_width(ratio[layer, head], tests),
                }
                if name == "origin":
                    row |= {"entropy": change.mean(), "entropy_width": half_width(change, tests)}
                heads.append(row)
        for restored in (False, True):
            for times in TIMES:
                begin = trained if times > 1 else trained // 2
                with removed(restoring(model, least, begin) if restored else []):
                    seen, loss = states(model, method, prompts[times], trained)
                for text, value in enumerate(loss):
                    distance = fitted.distances(seen[0][text : text + 1]).mean()
                    losses.append({"config": name, "restored": restored, "length": times * trained, "text": text,
                                   "loss": value, "distance": distance})  # fmt: skip
    pd.DataFrame(heads).to_csv(RESULTS / f"{Path(args.model).name}-heads.csv", index=False, float_format="%.4f")
    table = pd.DataFrame(losses)
    table.to_csv(RESULTS / f"{Path(args.model).name}-norms.csv", index=False, float_format="%.4f")
    report(pd.DataFrame(heads), table, trained)


def projections(model: Any) -> list[torch.nn.Module]:
    """The output projection of each layer's attention."""
    return [layer.self_attn.o_proj for layer in layers_of(model)]


def by_head(model: Any, values: Tensor) -> Tensor:
    """(batch, token, head, dim)."""
    return values.unflatten(-1, (model.config.num_attention_heads, -1))


@torch.no_grad()
def norms(model: Any, method: Method, prompts: Sequence[np.ndarray], tokens: slice) -> np.ndarray:
    """Mean norm of each head's output over tokens, (layer, head, text)."""
    parts = []
    for begin in range(0, len(prompts), BATCH):
        kept = list[np.ndarray]()

        def keep(module: Any, args: Any, kept: list[np.ndarray] = kept) -> None:
            kept.append(by_head(model, args[0])[:, tokens].norm(dim=-1).mean(1).T.numpy())

        with (
            mesa.applied(model, method),
            removed([each.register_forward_pre_hook(keep) for each in projections(model)]),
        ):
            model(torch.tensor(np.stack(prompts[begin : begin + BATCH])), use_cache=False, logits_to_keep=1)
        parts.append(np.stack(kept))
    return np.concatenate(parts, axis=-1)


@torch.no_grad()
def entropies(model: Any, prompts: Sequence[np.ndarray], trained: int) -> np.ndarray:
    """Mean entropy in nats of Origin's attention of the last M/4 tokens, (layer, head, text)."""
    former = model.config._attn_implementation
    model.set_attn_implementation("eager")
    parts = []
    for ids in prompts:
        attention = model(torch.tensor(ids)[None], use_cache=False, logits_to_keep=1, output_attentions=True).attentions
        last = torch.stack([each[0, :, -(trained // 4) :] for each in attention]).double()
        parts.append(torch.special.entr(last).sum(-1).mean(-1).numpy())
    model.set_attn_implementation(former)
    return np.stack(parts, axis=-1)


def restoring(model: Any, least: Tensor, begin: int) -> list[Any]:
    """Hooks that scale each head's output from a position on up to its mean norm within M, (layer, head)."""

    def hook(layer: int) -> Callable[..., Any]:
        def scale(module: Any, args: Any) -> Any:
            values = by_head(model, args[0]).clone()
            later = values[:, begin:]
            factor = (least[layer][:, None] / later.norm(dim=-1, keepdim=True)).clamp(min=1)
            values[:, begin:] = later * factor
            return (values.flatten(-2), *args[1:])

        return scale

    return [each.register_forward_pre_hook(hook(layer)) for layer, each in enumerate(projections(model))]


def report(heads: Any, losses: Any, trained: int) -> None:
    """What rule.md asks, printed."""
    for (name, length), part in heads.groupby(["config", "length"], sort=False):
        shorter = part.log_ratio + part.log_ratio_width < 0
        mean = part.log_ratio.mean()
        text = f"{name} {length}: {shorter.sum()} of {len(part)} heads are shorter, mean log ratio {mean:z.3f}"
        if name == "origin":
            wider = part.entropy - part.entropy_width > 0
            text += f"; entropy above in {wider.sum()}, in both {(shorter & wider).sum()}"
        print(text)
    wide = losses.pivot(index=["config", "text"], columns=["restored", "length"], values="loss")
    means = losses.groupby(["config", "restored", "length"])[["loss", "distance"]].mean()
    print(means.round(3).to_string())
    rng = np.random.default_rng(0)
    for name in losses.config.unique():
        values = wide.loc[name]
        for length in [times * trained for times in TIMES[1:]]:
            weights = rng.multinomial(len(values), np.full(len(values), 1 / len(values)), 2000)
            excess = (values[False, length] - values[False, trained]).to_numpy()
            back = (values[False, length] - values[True, length]).to_numpy()
            share = back.sum() / excess.sum()
            ends = np.quantile((weights @ back) / (weights @ excess), [0.025, 0.975])
            print(f"{name} {length}: excess {excess.mean():z.3f}, back {share:z.2f} {ends.round(2)}")
        cost = (values[True, trained] - values[False, trained]).mean()
        print(f"{name}: the edit costs {cost:z.3f} within M")


if __name__ == "__main__":
    run(main, make_parser(__doc__, "runs/collapse/default", "collapse"))
