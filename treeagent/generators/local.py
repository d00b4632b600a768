"""Sampling from a transformers model on this machine, with every prompt token encoded once.

The tokens of a tree share long prefixes. Their keys and values are kept in segments (an observation, an action) that
hang together like the tree itself. The K siblings of a state decode side by side as K query positions over one copy
of the prefix: a row per state, a mask that hides siblings from each other.
"""

import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np
import torch
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer

from treeagent.generators.attention import (
    additive,
    base_model,
    context_length,
    last_hidden_states,
    layer_windows,
    narrowed,
    unfit,
    windowed,
)
from treeagent.generators.base import Pause, Sample, context_refusal, token_limits
from treeagent.generators.usage import Usage
from treeagent.types import UserError

if TYPE_CHECKING:  # their package is an extra
    from treeagent.generators.structured import Followed, Form

Row = TypeVar("Row")

_TRIAL = (5, 3, 8, 4, 7, 6)
"""Tokens on which a model is tried out."""
_TRIAL_TOKENS = len(_TRIAL) + 2 + 3
"""Of the longest row then: a prompt, what is drawn behind it, and a shorter prompt again."""
_NARROW = 3
"""Size of its windows then."""
_APART = 0.05
"""Nats beyond any rounding of single precision."""


@dataclass(slots=True, eq=False)
class Segment:
    """A run of tokens whose keys and values are known, after the tokens of ``parent``."""

    parent: "Segment | None"
    token_ids: tuple[int, ...]
    keys_values: Tensor
    """[layers, 2, heads, tokens, head width]"""
    hidden: Tensor | None = None
    """[width], last layer, at the last token; None for a segment that was sampled, not read."""
    logits: Tensor | None = None
    """[vocabulary], of the token after the last."""
    children: dict[int, list["Segment"]] = field(default_factory=dict[int, list["Segment"]])

    @property
    def bytes(self) -> int:
        extra = sum(tensor.nbytes for tensor in (self.hidden, self.logits) if tensor is not None)
        return self.keys_values.nbytes + extra


class PrefixCache:
    """Segments as a trie, the least recently used leaf dropped first when ``capacity`` bytes are exceeded."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.bytes = 0
        self._roots: dict[int, list[Segment]] = {}
        self._order: OrderedDict[int, Segment] = OrderedDict()

    def find(self, token_ids: Sequence[int]) -> list[Segment]:
        """A chain of segments that spells a beginning of ``token_ids``, the longest segment taken at each place."""
        path: list[Segment] = []
        place, options = 0, self._roots
        while place < len(token_ids):
            fitting = [
                segment
                for segment in options.get(token_ids[place], ())
                if tuple(token_ids[place : place + len(segment.token_ids)]) == segment.token_ids
            ]
            if not fitting:
                break
            # One sibling's tokens may begin another's; of equal ones, that which was read holds more.
            best = max(fitting, key=lambda segment: (len(segment.token_ids), segment.hidden is not None))
            path.append(best)
            place += len(best.token_ids)
            options = best.children
        # Children first, so that an ancestor is always younger than its descendants: the oldest is a leaf.
        for segment in reversed(path):
            self._order.move_to_end(id(segment))
        return path

    def add(self, segment: Segment) -> Segment:
        siblings = segment.parent.children if segment.parent is not None else self._roots
        siblings.setdefault(segment.token_ids[0], []).append(segment)
        self._order[id(segment)] = segment
        self.bytes += segment.bytes
        ancestor = segment.parent
        while ancestor is not None:
            self._order.move_to_end(id(ancestor))
            ancestor = ancestor.parent
        return segment

    def trim(self) -> None:
        """Drop the least recently used leaves until the capacity holds."""
        while self.bytes > self.capacity and self._order:
            _, segment = self._order.popitem(last=False)
            siblings = segment.parent.children if segment.parent is not None else self._roots
            siblings[segment.token_ids[0]].remove(segment)
            self.bytes -= segment.bytes

    def clear(self) -> None:
        self._roots.clear()
        self._order.clear()
        self.bytes = 0


class _Layer(DynamicLayer):
    """A cache layer that writes into a buffer made beforehand instead of growing by concatenation."""

    def __init__(self, keys: Tensor, values: Tensor, length: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys_buffer, self.values_buffer, self.length = keys, values, length
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True
        self.keys, self.values = keys[:, :, :length], values[:, :, :length]

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        end = self.length + key_states.shape[-2]
        self.keys_buffer[:, :, self.length : end] = key_states
        self.values_buffer[:, :, self.length : end] = value_states
        self.length = end
        self.keys, self.values = self.keys_buffer[:, :, :end], self.values_buffer[:, :, :end]
        return self.keys, self.values


class LocalGenerator:
    """Reads prompts and samples continuations; not safe for concurrent use."""

    def __init__(self, model: PreTrainedModel | PeftModel, *, cache_bytes: int = 1 << 30, max_rows: int = 128) -> None:
        """``cache_bytes`` bounds the prefix cache; ``max_rows`` the prompts that go through the model together.

        Raises:
            UserError: the model's layers cannot be told by masks and positions what to see.
        """
        self.model = model.eval()
        self.cache = PrefixCache(cache_bytes)
        self.max_rows = max_rows
        self.usage = Usage()
        self.windows = layer_windows(model)
        self._shape = (0, 0, 0)
        """Layers of the cache, their heads and the width of a key and of a value."""
        self._try_out()

    def forget(self) -> None:
        self.cache.clear()

    @torch.no_grad()
    def _try_out(self) -> None:
        """Sample a few tokens over cached prefixes and compare with plain forward passes. What is told of the windows
        is compared too, for they are narrowed meanwhile.

        Raises:
            UserError: the model cannot be run so, or not to the same end.
        """
        try:
            with narrowed(self.model, _NARROW):
                self.windows = layer_windows(self.model)
                self._shape = self._cache_shape()
                apart = self._apart() if self.context >= _TRIAL_TOKENS else 0.0
        except torch.OutOfMemoryError:
            raise UserError(
                f"the GPU's memory does not hold a pass of a few tokens through {type(base_model(self.model)).__name__}"
                ": use a smaller model, or policy.dtype=bfloat16"
            ) from None
        except UserError:
            raise
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:  # what such a model raises
            reason = str(error).strip().partition("\n")[0].rstrip(".")
            raise unfit(self.model, f"does not run on shared prefixes ({type(error).__name__}: {reason})") from error
        finally:
            self.windows = layer_windows(self.model)
            self.forget()
            self.usage = Usage()
        # In fewer digits two experts may swap places, and nobody can tell that from a wrong mask.
        if self.model.dtype == torch.float32 and apart > _APART:
            raise unfit(self.model, f"judges tokens by other rules on shared prefixes (log π differs by {apart:.1g})")

    def _cache_shape(self) -> tuple[int, int, int]:
        ids = torch.tensor([self._known(_TRIAL)], device=self.model.device)
        cache = self.model(input_ids=ids, use_cache=True, logits_to_keep=1).past_key_values
        layers = cache.layers if isinstance(cache, Cache) else []
        shapes = set[tuple[int, int] | None]()
        for layer in layers:
            # Subclasses keep more than keys and values.
            known = type(layer) in (DynamicLayer, DynamicSlidingWindowLayer)
            kept = (layer.keys, layer.values) if known and isinstance(layer, DynamicLayer) else (None,)
            shapes |= {None if each is None else (each.shape[1], each.shape[3]) for each in kept}
        shape = shapes.pop() if len(shapes) == 1 else None
        if shape is None:
            raise unfit(self.model, "does not keep keys and values of one shape in every layer")
        return len(layers), *shape

    def _known(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """Of the model's vocabulary, however small that is."""
        vocabulary: int = self.model.config.get_text_config().vocab_size
        return tuple(token % vocabulary for token in token_ids)

    def _apart(self) -> float:
        """Nats by which log-probabilities over cached prefixes differ from those of plain forward passes, at most."""
        long, short = self._known(_TRIAL), self._known(_TRIAL[1:4])
        draws = torch.tensor([0.2, 0.7, 0.4, 0.9], dtype=torch.float64).view(1, 2, 2).expand(2, 2, 2)
        drawn = self._decode(self._read([long, short]), draws, [2, 2], [], -1, 1.0, None)
        apart = 0.0
        for prompt, samples in zip((long, short), drawn, strict=True):
            for sample in samples:
                row = (*prompt, *sample.token_ids, *short)
                plain = self.model(input_ids=torch.tensor([row], device=self.model.device), use_cache=False).logits[0]
                expected = plain.float().log_softmax(-1).cpu()
                places = torch.arange(len(prompt), len(prompt) + len(sample.token_ids))
                sampled = expected[places - 1, torch.tensor(sample.token_ids)]
                apart = max(apart, (sampled - torch.tensor(sample.logprobs)).abs().max().item())
                [leaf] = self._read([row])
                after = cast(Tensor, leaf.logits).log_softmax(-1).cpu()
                apart = max(apart, (after - expected[-1])[int(after.argmax())].abs().item())
        return apart

    @torch.no_grad()
    def hidden(self, prompts: Sequence[tuple[int, ...]]) -> Tensor:
        """The last layer's hidden state at each prompt's last token, [prompts, width].

        Raises:
            ValueError: a prompt is empty or longer than the model's context.
        """
        segments = self._read(prompts)
        self.cache.trim()
        return torch.stack([cast(Tensor, segment.hidden) for segment in segments])

    @torch.no_grad()
    def next_logprobs(self, prompts: Sequence[tuple[int, ...]], token_ids: Sequence[int]) -> Tensor:
        """As ``Generator.next_logprobs``."""
        segments = self._read(prompts)
        self.cache.trim()
        logits = torch.stack([cast(Tensor, segment.logits) for segment in segments])
        return logits.log_softmax(-1)[:, list(token_ids)].cpu()

    def _read(self, prompts: Sequence[tuple[int, ...]]) -> list[Segment]:
        """The last segment of each prompt, whose ``hidden`` and ``logits`` belong to the prompt's last token."""
        known: dict[tuple[int, ...], Segment] = {}
        missing: list[tuple[int, ...]] = []
        for prompt in dict.fromkeys(prompts):
            if refusal := self.refusal(prompt):
                raise UserError(refusal)
            path = self.cache.find(prompt)
            length = sum(len(segment.token_ids) for segment in path)
            if length == len(prompt) and path[-1].hidden is not None:
                known[prompt] = path[-1]
                self.usage.cached_tokens += length
            else:
                missing.append(prompt)
        known.update(zip(missing, self._batched(len(missing), lambda rows: self._encode(missing[rows])), strict=True))
        return [known[prompt] for prompt in prompts]

    def _batched(self, count: int, work: Callable[[slice], list[Row]]) -> list[Row]:
        """``work`` on slices of ``count`` rows, as many together as ``max_rows`` and the GPU's memory allow."""
        done: list[Row] = []
        while len(done) < count:
            rows = min(self.max_rows, count - len(done))
            try:
                done += work(slice(len(done), len(done) + rows))
            except torch.OutOfMemoryError:
                if rows == 1:
                    raise UserError(
                        "the GPU's memory does not hold the keys and values of one prompt's samples: lower "
                        "policy.cache_bytes or search.candidates, or use a smaller model"
                    ) from None
                if rows // 2 < self.max_rows:
                    self.max_rows = rows // 2
                    warnings.warn(
                        f"the GPU's memory is full: from now on {self.max_rows} prompts go through the model together",
                        stacklevel=2,
                    )
        return done

    def refusal(self, prompt: tuple[int, ...]) -> str:
        return context_refusal(prompt, self.context)

    @property
    def context(self) -> int:
        return context_length(self.model)

    def _encode(self, prompts: Sequence[tuple[int, ...]]) -> list[Segment]:
        paths = [self._reusable(prompt) for prompt in prompts]
        pasts = [sum(len(segment.token_ids) for segment in path) for path in paths]
        new = [prompt[past:] for prompt, past in zip(prompts, pasts, strict=True)]
        width, past = max(map(len, new)), max(pasts)
        buffer = self._buffer(paths, past, width)
        device = self.model.device
        ids = torch.zeros(len(new), width, dtype=torch.long)
        positions = torch.zeros(len(new), width, dtype=torch.long)
        keys = torch.zeros(len(new), past + width, dtype=torch.long)
        seen = torch.zeros(len(new), width, past + width, dtype=torch.bool)
        for row, (tokens, known) in enumerate(zip(new, pasts, strict=True)):
            pad = width - len(tokens)  # on the left, so that the last column is every prompt's last token
            ids[row, pad:] = torch.tensor(tokens)
            positions[row, pad:] = torch.arange(known, known + len(tokens))
            keys[row, past - known : past] = torch.arange(known)
            keys[row, past + pad :] = positions[row, pad:]
            seen[row, pad:, past - known : past] = True
            seen[row, pad:, past + pad :] = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril()
        with last_hidden_states(self.model) as collected:
            output = self.model(
                input_ids=ids.to(device),
                position_ids=positions.to(device),
                attention_mask=windowed(self.windows, self._additive(seen), seen, positions, keys),
                past_key_values=_cache(buffer, past),
                use_cache=True,
                logits_to_keep=1,
            )
        hidden, logits = collected[0][:, -1].float(), output.logits[:, -1].float()
        segments = []
        for row, (path, tokens) in enumerate(zip(paths, new, strict=True)):
            keys_values = buffer[:, :, row, :, past + width - len(tokens) :].clone()
            parent = path[-1] if path else None
            # Clones: a view would keep the whole batch in memory for as long as the segment lives.
            kept = Segment(parent, tokens, keys_values, hidden[row].clone(), logits[row].clone())
            segments.append(self.cache.add(kept))
        self.usage.encoded_tokens += sum(map(len, new))
        self.usage.cached_tokens += sum(pasts)
        return segments

    def _reusable(self, prompt: tuple[int, ...]) -> list[Segment]:
        """Cached segments that leave at least one token to be read, because its hidden state is wanted."""
        path = self.cache.find(prompt)
        while path and sum(len(segment.token_ids) for segment in path) == len(prompt):
            path.pop()
        return path

    @torch.no_grad()
    def sample(
        self,
        prompts: Sequence[tuple[int, ...]],
        count: int,
        seeds: Sequence[int],
        *,
        stop_id: int,
        max_new_tokens: int | Sequence[int],
        temperature: float = 1.0,
        pauses: Sequence[Pause | None] = (),
        form: "Form | None" = None,
        begun: Sequence[tuple[int, ...]] = (),
    ) -> list[list[Sample]]:
        """As ``Generator.sample``."""
        limits = token_limits(prompts, max_new_tokens, self.context)

        def draw(rows: slice) -> list[list[Sample]]:
            leaves = self._read(prompts[rows])
            # One row a token, so that a prompt's draws do not depend on how far the others go.
            draws = np.stack([np.random.default_rng(seed).random((max(limits[rows]), count)) for seed in seeds[rows]])
            vocabulary = cast(Tensor, leaves[0].logits).shape[-1]
            turns = (begun or [()] * len(prompts))[rows]
            held = None if form is None else form.follow(turns, count, vocabulary)
            drawn = self._decode(
                leaves, torch.from_numpy(draws), limits[rows], pauses[rows], stop_id, temperature, held
            )
            self.cache.trim()
            return drawn

        return self._batched(len(prompts), draw)

    def _decode(
        self,
        leaves: Sequence[Segment],
        draws: Tensor,
        limits: Sequence[int],
        pauses: Sequence[Pause | None],
        stop_id: int,
        temperature: float,
        held: "Followed | None",
    ) -> list[list[Sample]]:
        """``draws`` [prompts, new tokens, siblings] are uniform numbers, one for each token to be sampled."""
        rows, steps, count = draws.shape
        paths = [_chain(leaf) for leaf in leaves]
        pasts = torch.tensor([sum(len(segment.token_ids) for segment in path) for path in paths])
        past = int(pasts.max())
        buffer = self._buffer(paths, past, steps * count)
        # Column past + step * count + k belongs to sibling k; the prefix is left-padded.
        own = torch.eye(count, dtype=torch.bool).repeat(1, steps).expand(rows, count, steps * count)
        prefix = (torch.arange(past) >= past - pasts[:, None])[:, None].expand(rows, count, past)
        seen = torch.cat([prefix, own], dim=-1)
        mask = self._additive(seen)
        news = torch.arange(steps).repeat_interleave(count)
        keys = pasts[:, None] + torch.cat([torch.arange(past) - past, news])
        cache = _cache(buffer, past)
        logits = torch.stack([cast(Tensor, leaf.logits) for leaf in leaves]).cpu()[:, None].expand(-1, count, -1)
        tokens, logprobs = torch.zeros(rows, steps, count, dtype=torch.long), torch.zeros(rows, steps, count)
        lengths = torch.tensor(limits)[:, None].repeat(1, count)
        pausing = any(pauses)
        for step in range(steps):
            allowed = None if held is None else torch.from_numpy(held.allowed())
            tokens[:, step], logprobs[:, step] = _draw(logits, draws[:, step], temperature, allowed)
            if held is not None:
                held.take(tokens[:, step].tolist())
            lengths = torch.where((tokens[:, step] == stop_id) & (lengths > step), step + 1, lengths)
            if pausing:
                _pause(tokens[:, : step + 1], lengths, pauses)
            if step + 1 == steps or bool((lengths <= step + 1).all()):
                break
            positions, end = (pasts + step)[:, None].expand(rows, count), past + (step + 1) * count
            output = self.model(
                input_ids=tokens[:, step].to(self.model.device),
                position_ids=positions.to(self.model.device),
                attention_mask=windowed(self.windows, mask[..., :end], seen[..., :end], positions, keys[:, :end]),
                past_key_values=cache,
                use_cache=True,
            )
            logits = output.logits.float().cpu()
        self.usage.generated_tokens += int(lengths.sum())
        return [
            self._keep(leaf, buffer[:, :, row, :, past:], tokens[row], logprobs[row], lengths[row])
            for row, leaf in enumerate(leaves)
        ]

    def _keep(self, leaf: Segment, drawn: Tensor, tokens: Tensor, logprobs: Tensor, lengths: Tensor) -> list[Sample]:
        """The samples of one prompt, their keys and values cached, all but the last token's, which was never fed."""
        samples, count = [], tokens.shape[1]
        for sibling in range(count):
            length = int(lengths[sibling])
            ids = tuple(tokens[:length, sibling].tolist())
            samples.append(Sample(ids, tuple(logprobs[:length, sibling].tolist())))
            fed = ids[:-1]
            if fed and not any(child.token_ids == fed for child in leaf.children.get(fed[0], ())):
                keys_values = drawn[:, :, :, sibling : (length - 1) * count : count].clone()
                self.cache.add(Segment(leaf, fed, keys_values))
        return samples

    def _buffer(self, paths: Sequence[Sequence[Segment]], past: int, new: int) -> Tensor:
        """[layers, 2, rows, heads, past + new, head width], the paths' keys and values right-aligned at ``past``."""
        layers, heads, width = self._shape
        shape = (layers, 2, len(paths), heads, past + new, width)
        buffer = torch.zeros(shape, dtype=self.model.dtype, device=self.model.device)
        for row, path in enumerate(paths):
            end = past
            for segment in reversed(path):
                start = end - len(segment.token_ids)
                buffer[:, :, row, :, start:end] = segment.keys_values
                end = start
        return buffer

    def _additive(self, seen: Tensor) -> Tensor:
        return additive(seen, self.model.dtype, self.model.device)


def _cache(buffer: Tensor, length: int) -> Cache:
    return Cache(layers=[_Layer(keys_values[0], keys_values[1], length) for keys_values in buffer])


def _chain(segment: Segment) -> list[Segment]:
    path = [segment]
    while path[-1].parent is not None:
        path.append(path[-1].parent)
    return path[::-1]


def _pause(tokens: Tensor, lengths: Tensor, pauses: Sequence[Pause | None]) -> None:
    """Cut the ``lengths`` [rows, siblings] of samples that reach their pause with the last of ``tokens`` [rows, tokens,
    siblings]."""
    length = tokens.shape[1]
    for row, (pause, latest) in enumerate(zip(pauses, tokens[:, -1].tolist(), strict=True)):
        if pause is None:
            continue
        for sibling, token in enumerate(latest):
            goes_on = token in pause.tokens and lengths[row, sibling] > length
            if goes_on and pause.reached(tuple(tokens[row, :, sibling].tolist())):
                lengths[row, sibling] = length


def _draw(logits: Tensor, uniform: Tensor, temperature: float, allowed: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Tokens by inversion of the cumulative distribution, those ``allowed`` [rows, siblings, vocabulary] alone, and
    their log-probabilities among all; [rows, siblings] each."""
    logprobs = torch.log_softmax(logits / temperature if temperature > 0 else logits, dim=-1)
    held = logprobs if allowed is None else logprobs.masked_fill(~allowed, -torch.inf).log_softmax(-1)
    if temperature > 0:
        cumulative = held.exp().cumsum(dim=-1)
        # Rounded to 1, a number would choose the vocabulary's last token, however unlikely.
        below = uniform[..., None].float().clamp(max=1 - 2**-24) * cumulative[..., -1:]
        chosen = torch.searchsorted(cumulative, below.contiguous(), right=True)
        chosen = chosen.clamp(max=logits.shape[-1] - 1)
    else:
        chosen = held.argmax(dim=-1, keepdim=True)
    return chosen[..., 0], logprobs.gather(-1, chosen)[..., 0]
