"""Sampling from a transformers model on this machine, with every prompt token read only once.

*The prefix cache.* Keys and values are kept in segments, runs of tokens such as an observation or an action, which form
a trie. To read a prompt, the longest chain of segments that matches its beginning is copied into one buffer, and only
the remaining tokens go through the model.

*Siblings in one row.* The K samples of a prompt share one row and one copy of its prefix. At each step the row has K
new tokens, all at the same position, and the attention mask hides them from each other. Given continuations (``score``)
share a row in the same way.
"""

import ctypes
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, cast

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
    hidden_states,
    layer_windows,
    unfit,
    windowed,
)
from treeagent.generators.base import Generator, Ids, Pause, Sample, SampleRequest, Usage, prefix_trie
from treeagent.generators.config import CACHE_BYTES
from treeagent.types import UserError

Row = TypeVar("Row")

_SCORED_LOGITS = 2**28
"""Most logits that one forward pass of ``LocalGenerator.score`` computes (1 GiB in single precision)."""


@dataclass(slots=True, eq=False)
class Segment:
    """A run of tokens with their keys and values. It follows the tokens of ``parent`` and of its ancestors."""

    parent: "Segment | None"
    token_ids: tuple[int, ...]
    keys_values: Tensor
    """[layers, 2, heads, tokens, head width]"""
    hidden: Tensor | None = None
    """[2 · width]: of the middle and the last layer at the last token; None if the segment was sampled, not read."""
    logits: Tensor | None = None
    """[vocabulary]: the logits of the token after the segment."""
    children: dict[int, list["Segment"]] = field(default_factory=dict[int, list["Segment"]])
    end: int = 0
    """Number of tokens from the beginning of the prompt."""
    bytes: int = 0


class PrefixCache:
    """A trie of segments. ``trim`` drops the least recently used leaves once it holds more than ``capacity`` bytes."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.bytes = 0
        self._roots: dict[int, list[Segment]] = {}
        self._order: OrderedDict[int, Segment] = OrderedDict()

    def find(self, token_ids: Sequence[int]) -> Segment | None:
        """The last of the longest segments that match the beginning of ``token_ids``; None if none does."""
        found, end, options = None, 0, self._roots
        while end < len(token_ids):
            fitting = [
                segment
                for segment in options.get(token_ids[end], ())
                if tuple(token_ids[end : end + len(segment.token_ids)]) == segment.token_ids
            ]
            if not fitting:
                break
            # Of two equal segments, the one that was read also has a hidden state.
            found = max(fitting, key=lambda segment: (len(segment.token_ids), segment.hidden is not None))
            end, options = found.end, found.children
        # Children first, so that the oldest segment is always a leaf.
        segment = found
        while segment is not None:
            self._order.move_to_end(id(segment))
            segment = segment.parent
        return found

    def add(self, segment: Segment) -> Segment:
        parent, tensors = segment.parent, (segment.keys_values, segment.hidden, segment.logits)
        segment.end = len(segment.token_ids) + (parent.end if parent is not None else 0)
        segment.bytes = sum(each.nbytes for each in tensors if each is not None)
        siblings = parent.children if parent is not None else self._roots
        siblings.setdefault(segment.token_ids[0], []).append(segment)
        self._order[id(segment)] = segment
        self.bytes += segment.bytes
        while parent is not None:
            self._order.move_to_end(id(parent))
            parent = parent.parent
        return segment

    def trim(self) -> None:
        while self.bytes > self.capacity and self._order:
            _, segment = self._order.popitem(last=False)
            siblings = segment.parent.children if segment.parent is not None else self._roots
            siblings[segment.token_ids[0]].remove(segment)
            self.bytes -= segment.bytes


class _Layer(DynamicLayer):
    """A layer of transformers' cache that writes into a preallocated buffer instead of growing by concatenation."""

    def __init__(self, keys: Tensor, values: Tensor, length: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys_buffer, self.values_buffer, self.length = keys, values, length
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True
        self.keys, self.values = keys[:, :, :length], values[:, :, :length]

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        end = self.length + key_states.shape[-2]
        self.keys_buffer[:, :, self.length : end] = key_states
        self.values_buffer[:, :, self.length : end] = value_states
        self.length = end
        self.keys, self.values = self.keys_buffer[:, :, :end], self.values_buffer[:, :, :end]
        return self.keys, self.values


class LocalGenerator(Generator):
    """Reads prompts and samples continuations. Not safe for concurrent use."""

    def __init__(
        self,
        model: PreTrainedModel | PeftModel,
        *,
        cache_bytes: int = CACHE_BYTES,
        max_rows: int = 128,
        vocabulary: int = sys.maxsize,
    ) -> None:
        """At most ``max_rows`` prompts go through the model together. A padded output beyond the tokenizer's
        ``vocabulary`` is never drawn."""
        self.model, self.cache = model.eval(), PrefixCache(cache_bytes)
        self.max_rows, self.vocabulary = max_rows, vocabulary
        ends = getattr(base_model(model).generation_config, "eos_token_id", None)
        self.end_ids = () if ends is None else (ends,) if isinstance(ends, int) else tuple(ends)
        self.usage = Usage()
        self.context = context_length(model)
        self.windows = layer_windows(model)
        self.shared: tuple[int, ...] = ()
        """The common prefix of most prompts. It is read once, and prompts continue from it."""
        self._shape = self._cache_shape()
        """Number of layers, number of heads per layer, and width of a key or value."""

    def forget(self) -> None:
        self.cache = PrefixCache(self.cache.capacity)
        with suppress(OSError, AttributeError):  # glibc keeps freed memory, which the next training may need
            ctypes.CDLL("libc.so.6").malloc_trim(0)

    @torch.no_grad()
    def _cache_shape(self) -> tuple[int, int, int]:
        """Measure ``_shape`` by reading one token, because configurations name these numbers in many ways."""
        token = torch.zeros(1, 1, dtype=torch.long, device=self.model.device)
        cache = self.model(input_ids=token, use_cache=True, logits_to_keep=1).past_key_values
        plain = (DynamicLayer, DynamicSlidingWindowLayer)  # their subclasses keep more than keys and values
        layers: list[Any] = [each for each in cache.layers if type(each) in plain] if isinstance(cache, Cache) else []
        shapes = {(tensor.shape[1], tensor.shape[3]) for layer in layers for tensor in (layer.keys, layer.values)}
        if len(shapes) != 1 or len(layers) < len(cache.layers):
            raise unfit(self.model, "does not keep keys and values of one shape in every layer")
        return len(layers), *shapes.pop()

    @torch.no_grad()
    def hidden(self, prompts: Sequence[Ids]) -> Tensor:
        """The hidden states of the middle and the last layer at each prompt's last token, [prompts, 2 · width]."""
        segments = self._read(prompts)
        self.cache.trim()
        return torch.stack([cast(Tensor, segment.hidden) for segment in segments])

    @torch.no_grad()
    def sample(self, request: SampleRequest) -> list[list[Sample]]:
        return self._batched(len(request.prompts), partial(self._decode, request))

    @torch.no_grad()
    def score(
        self, prompts: Sequence[Ids], candidates: Sequence[Sequence[Ids]], temperature: float = 1.0
    ) -> list[list[Sample]]:
        def work(rows: slice) -> list[list[Sample]]:
            leaves, asked, scored = self._read(prompts[rows]), candidates[rows], list[list[Sample]]()
            width = max(max(len(prefix_trie(each)) for each in asked) - 1, 1)
            most = max(_SCORED_LOGITS // (width * int(cast(Tensor, leaves[0].logits).shape[-1])), 1)
            for start in range(0, len(leaves), most):
                part = slice(start, start + most)
                scored += self._score(leaves[part], asked[part], temperature or 1.0)
            self.cache.trim()
            return scored

        return self._batched(len(prompts), work)

    def _batched(self, count: int, work: Callable[[slice], list[Row]]) -> list[Row]:
        """Run ``work`` on slices of ``count`` rows, each as large as ``max_rows`` and the GPU's memory allow."""
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
                self.max_rows = min(self.max_rows, rows // 2)
        return done

    def _read(self, prompts: Sequence[Ids]) -> list[Segment]:
        """The last segment of each prompt, with ``hidden`` and ``logits``."""
        shared = self.shared
        if shared and any(prompt[: len(shared)] == shared != prompt for prompt in prompts):
            known = self.cache.find(shared)
            if known is None or known.end < len(shared):
                self._batched(1, lambda rows: self._encode([shared]))
        read = dict[Ids, Segment]()
        for prompt in dict.fromkeys(prompts):
            known = self.cache.find(prompt)
            if known is not None and known.end == len(prompt) and known.hidden is not None:
                read[prompt] = known
                self.usage.cached_tokens += len(prompt)
        missing = [prompt for prompt in dict.fromkeys(prompts) if prompt not in read]
        read.update(zip(missing, self._batched(len(missing), lambda rows: self._encode(missing[rows])), strict=True))
        return [read[prompt] for prompt in prompts]

    def _encode(self, prompts: Sequence[Ids]) -> list[Segment]:
        # The last token always goes through the model, so that its hidden state and its logits are computed.
        leaves = [self.cache.find(prompt[:-1]) for prompt in prompts]
        pasts = [leaf.end if leaf else 0 for leaf in leaves]
        new = [prompt[past:] for prompt, past in zip(prompts, pasts, strict=True)]
        width, past = max(map(len, new)), max(pasts)
        buffer, cache = self._buffer(leaves, past, width)
        ids, positions = torch.zeros(2, len(new), width, dtype=torch.long)
        keys = torch.zeros(len(new), past + width, dtype=torch.long)
        seen = torch.zeros(len(new), width, past + width, dtype=torch.bool)
        for row, (tokens, known) in enumerate(zip(new, pasts, strict=True)):
            pad = width - len(tokens)  # padding is on the left, so that the last column holds each prompt's last token
            ids[row, pad:] = torch.tensor(tokens)
            positions[row, pad:] = torch.arange(known, known + len(tokens))
            keys[row, past - known : past] = torch.arange(known)
            keys[row, past + pad :] = positions[row, pad:]
            seen[row, pad:, past - known : past] = True
            seen[row, pad:, past + pad :] = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril()
        # As a tensor of columns: with a number, the head takes 12 to 800 times as long on a CPU.
        last = torch.tensor([width - 1], device=self.model.device)
        with hidden_states(self.model) as collected:
            logits = self._logits(cache, ids, positions, seen, keys, logits_to_keep=last)[:, -1].float()
        hidden = collected[0][:, -1].float()
        segments = []
        for row, (leaf, tokens) in enumerate(zip(leaves, new, strict=True)):
            keys_values = buffer[:, :, row, :, past + width - len(tokens) :].clone()
            # Cloned, because a view would keep the whole batch in memory as long as the segment exists.
            segment = Segment(leaf, tokens, keys_values, hidden[row].clone(), logits[row].clone())
            segments.append(self.cache.add(segment))
        self.usage.encoded_tokens += sum(map(len, new))
        self.usage.cached_tokens += sum(pasts)
        return segments

    def _score(
        self, leaves: Sequence[Segment], candidates: Sequence[Sequence[Ids]], temperature: float
    ) -> list[list[Sample]]:
        """Score ``candidates`` as continuations of ``leaves``, without caching them: search continues only a few.

        Each nonempty prefix of the candidates of a row is a column of its last token, which attends to the prompt, its
        shorter prefixes and itself.
        """
        tries = [prefix_trie(each) for each in candidates]
        rows, width = len(leaves), max(map(len, tries)) - 1
        # Filled as NumPy arrays: setting single elements of a tensor would take longer than the pass of a small model.
        ids, depths = np.zeros((rows, width), dtype=np.int64), np.zeros((rows, width), dtype=np.int64)
        above = np.zeros((rows, width, width), dtype=np.bool_)
        for row, trie in enumerate(tries):
            column = {prefix: index for index, prefix in enumerate(trie, start=-1)}
            for prefix, index in list(column.items())[1:]:
                ids[row, index], depths[row, index] = prefix[-1], len(prefix) - 1
                if len(prefix) > 1:
                    above[row, index] = above[row, column[prefix[:-1]]]
                above[row, index, index] = True
        after = [torch.empty(0)] * rows
        if width:
            pasts = torch.tensor([leaf.end for leaf in leaves])
            past = int(pasts.max())
            before = (torch.arange(past) >= past - pasts[:, None])[:, None].expand(rows, width, past)
            seen = torch.cat([before, torch.from_numpy(above)], dim=-1)
            positions = pasts[:, None] + torch.from_numpy(depths)
            keys = torch.cat([pasts[:, None] + torch.arange(past) - past, positions], dim=-1)
            _, cache = self._buffer(leaves, past, width)
            after = list(self._logits(cache, torch.from_numpy(ids), positions, seen, keys))
            self.usage.encoded_tokens += sum(len(trie) - 1 for trie in tries)
        scored: list[list[Sample]] = []
        for leaf, trie, fed, sequences in zip(leaves, tries, after, candidates, strict=True):
            first = cast(Tensor, leaf.logits)[None]
            logits = torch.cat([first, fed.float()[: len(trie) - 1]]) if len(trie) > 1 else first
            logprobs = (logits / temperature).log_softmax(-1)
            row_of = {prefix: number for number, prefix in enumerate(trie)}
            steps = [(row_of[ids[:length]], token) for ids in sequences for length, token in enumerate(ids)]
            scores = iter(logprobs[tuple(zip(*steps, strict=True))].tolist() if steps else ())
            scored.append([Sample(ids, tuple(next(scores) for _ in ids)) for ids in sequences])
        return scored

    def _decode(self, request: SampleRequest, part: slice) -> list[list[Sample]]:
        """Sample continuations of the slice ``part`` of the request's prompts."""
        limits, count = request.limits(self.context)[part], request.count
        leaves, steps = self._read(request.prompts[part]), max(limits)
        rows = len(leaves)
        if not count:
            return [[] for _ in leaves]
        # One row of random numbers per token, so that the draws of a prompt do not depend on the lengths of others.
        draws = torch.from_numpy(
            np.stack([np.random.default_rng(seed).random((steps, count)) for seed in request.seeds[part]])
        )
        pasts = torch.tensor([leaf.end for leaf in leaves])
        past = int(pasts.max())
        buffer, cache = self._buffer(leaves, past, steps * count)
        # The columns of a row: its prefix, padded on the left, then ``count`` columns per step, one for each sibling.
        # Column past + step * count + k belongs to sibling k, which attends only to the prefix and its own columns.
        own = torch.eye(count, dtype=torch.bool).repeat(1, steps).expand(rows, count, steps * count)
        prefix = (torch.arange(past) >= past - pasts[:, None])[:, None].expand(rows, count, past)
        seen = torch.cat([prefix, own], dim=-1)
        mask = additive(seen, self.model.dtype, self.model.device)
        keys = pasts[:, None] + torch.cat([torch.arange(past) - past, torch.arange(steps).repeat_interleave(count)])
        logits = torch.stack([cast(Tensor, leaf.logits) for leaf in leaves]).cpu()[:, None].expand(-1, count, -1)
        tokens, logprobs = torch.zeros(rows, steps, count, dtype=torch.long), torch.zeros(rows, steps, count)
        lengths = torch.tensor(limits)[:, None].repeat(1, count)
        pauses, form, size = request.pauses[part], request.form, logits.shape[-1]
        turns = (request.turn_prefixes or [()] * len(request.prompts))[part]
        states = form.begun(turns, count) if form is not None else []
        known = torch.arange(size) < self.vocabulary if size > self.vocabulary else None
        stops, counted = torch.tensor([request.stop_id, *request.other_stops]), 0
        for step in range(steps):
            allowed = known if form is None else torch.from_numpy(form.allowed(states, size))
            tokens[:, step], logprobs[:, step] = _draw(logits, draws[:, step], request.temperature, allowed)
            if form is not None:
                form.advance(states, tokens[:, step].tolist())
            ended = torch.isin(tokens[:, step], stops) & (lengths > step)
            lengths = torch.where(ended, step + 1, lengths)
            if any(pauses):
                _pause(tokens[:, : step + 1], lengths, pauses)
            drawn = int(lengths.clamp(max=step + 1).sum())
            self.usage.generated_tokens += drawn - counted  # as they come, since who watches a run reads it
            counted = drawn
            if step + 1 == steps or bool((lengths <= step + 1).all()):
                break
            # A row at its own limit stays where it is: a position beyond the context would fail.
            places = pasts + torch.clamp(torch.tensor(limits) - 1, max=step)
            positions, end = places[:, None].expand(rows, count), past + (step + 1) * count
            columns = seen[..., :end], keys[:, :end], mask[..., :end]
            logits = self._logits(cache, tokens[:, step], positions, *columns).float().cpu()
        self.usage.generated_tokens += int(lengths.sum()) - counted
        samples: list[list[Sample]] = [[] for _ in leaves]
        for row, sibling in np.ndindex(rows, count):
            length, leaf = int(lengths[row, sibling]), leaves[row]
            ids = tuple(tokens[row, :length, sibling].tolist())
            samples[row].append(Sample(ids, tuple(logprobs[row, :length, sibling].tolist())))
            fed = ids[:-1]  # the last token was only drawn
            if fed and not any(child.token_ids == fed for child in leaf.children.get(fed[0], ())):
                own_columns = slice(past + sibling, past + (length - 1) * count, count)
                self.cache.add(Segment(leaf, fed, buffer[:, :, row, :, own_columns].clone()))
        self.cache.trim()
        return samples

    def _buffer(self, leaves: Sequence[Segment | None], past: int, new: int) -> tuple[Tensor, Cache]:
        """Keys and values, [layers, 2, rows, heads, past + new, head width], of which those up to ``leaves`` end at
        column ``past``; and the same as a cache."""
        layers, heads, width = self._shape
        shape = (layers, 2, len(leaves), heads, past + new, width)
        buffer = torch.zeros(shape, dtype=self.model.dtype, device=self.model.device)
        for row, leaf in enumerate(leaves):
            segment, end = leaf, past
            while segment is not None:
                start = end - len(segment.token_ids)
                buffer[:, :, row, :, start:end] = segment.keys_values
                segment, end = segment.parent, start
        return buffer, Cache(layers=[_Layer(keys_values[0], keys_values[1], past) for keys_values in buffer])

    def _logits(
        self, cache: Cache, ids: Tensor, positions: Tensor, seen: Tensor, keys: Tensor, *masks: Tensor, **options: Any
    ) -> Tensor:
        """The logits of one forward pass. ``masks`` may hold ``additive(seen)``, where it is known."""
        [mask] = masks or [additive(seen, self.model.dtype, self.model.device)]
        output = self.model(
            input_ids=ids.to(self.model.device),
            position_ids=positions.to(self.model.device),
            attention_mask=windowed(self.windows, mask, seen, positions, keys),
            past_key_values=cache,
            use_cache=True,
            **options,
        )
        return cast(Tensor, output.logits)


def _pause(tokens: Tensor, lengths: Tensor, pauses: Sequence[Pause | None]) -> None:
    """Shorten ``lengths``, [rows, siblings], of the samples that reach their pause with the last of ``tokens``, [rows,
    tokens, siblings]."""
    length = tokens.shape[1]
    for row, (pause, latest) in enumerate(zip(pauses, tokens[:, -1].tolist(), strict=True)):
        if pause is None:
            continue
        for sibling, token in enumerate(latest):
            goes_on = token in pause.tokens and lengths[row, sibling] > length
            if goes_on and pause.reached(tuple(tokens[row, :, sibling].tolist())):
                lengths[row, sibling] = length


def _draw(logits: Tensor, uniform: Tensor, temperature: float, allowed: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Draw tokens by inverting the cumulative distribution. Returns them and their log-probabilities among all tokens,
    [rows, siblings] each. ``logits``, and ``allowed`` (tokens that may be drawn), are [rows, siblings, vocabulary];
    ``uniform`` are random numbers in [0, 1), [rows, siblings]."""
    logprobs = torch.log_softmax(logits / temperature if temperature > 0 else logits, dim=-1)
    kept_logprobs = logprobs if allowed is None else logprobs.masked_fill(~allowed, -torch.inf).log_softmax(-1)
    if temperature > 0:
        cumulative = kept_logprobs.exp().cumsum(dim=-1)
        # A number that rounds to 1 would choose the last token of the vocabulary, however unlikely it is.
        below = uniform[..., None].float().clamp(max=1 - 2**-24) * cumulative[..., -1:]
        chosen = torch.searchsorted(cumulative, below.contiguous(), right=True)
        chosen = chosen.clamp(max=logits.shape[-1] - 1)
    else:
        chosen = kept_logprobs.argmax(dim=-1, keepdim=True)
    return chosen[..., 0], logprobs.gather(-1, chosen)[..., 0]
