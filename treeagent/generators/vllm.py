"""A vLLM engine in this process, for several GPUs and many prompts. The engine caches shared prefixes itself."""

import gc
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from treeagent.generators.base import (
    Asked,
    Failure,
    Generator,
    Ids,
    Sample,
    SampleRequest,
    Usage,
    checked_sample,
    score_each_prefix,
)
from treeagent.generators.config import DType, VllmConfig
from treeagent.types import UserError

try:
    from vllm import LLM, RequestOutput, SamplingParams
    from vllm.lora.request import LoRARequest
    from vllm.platforms import current_platform
    from vllm.sampling_params import StructuredOutputsParams
except ImportError as error:
    raise UserError(f"vllm is missing ({error}): pip install 'treeagent[vllm]'") from error


class VllmGenerator(Generator):
    """Runs a whole model, or an adapter on its base model; ``load`` switches to another checkpoint."""

    def __init__(
        self, base: str, adapter: Path | None, config: VllmConfig, dtype: DType = "auto", *, structured: bool = False
    ) -> None:
        """Start the engine, which takes about a minute. If ``structured``, requests may have a ``form``."""
        self.base, self.adapter, self.structured = base, adapter, structured
        self.usage = Usage()
        # vLLM accepts powers of 2 from 8 to 512.
        self._most_rank = 8 if adapter is None else 1 << (max(_rank(adapter), 8) - 1).bit_length()
        self._llm = LLM(
            model=base,
            skip_tokenizer_init=not structured,
            structured_outputs_config={"backend": "guidance"},  # the backend that reads llguidance's Lark
            dtype=dtype,
            tensor_parallel_size=config.tensor_parallel_size,
            gpu_memory_utilization=config.gpu_memory_utilization,
            max_model_len=config.max_model_len,
            logprobs_mode="processed_logprobs",  # those of the distribution drawn from, with the temperature applied
            enable_prefix_caching=True,
            enable_sleep_mode=current_platform.is_sleep_mode_available(),
            enable_lora=adapter is not None,
            max_lora_rank=self._most_rank,
        )
        self.context = int(self._llm.llm_engine.model_config.max_model_len)
        self._vocabulary = int(self._llm.llm_engine.model_config.get_vocab_size())
        self._tied = bool(self._llm.llm_engine.model_config.hf_text_config.tie_word_embeddings)
        self._asleep = False
        self._adapters = 1
        """Adapters loaded so far; vLLM identifies an adapter by its number."""

    def load(self, base: str, adapter: Path | None) -> bool:
        """Switch to another checkpoint, which takes about a second. Returns False if that needs a new engine."""
        if (base, adapter) == (self.base, self.adapter):
            return True
        if (adapter is None) != (self.adapter is None):
            return False
        if adapter is None:
            if self._tied:
                return False  # vLLM 0.31 on a CPU silently keeps the old output layer
            self._wake()
            self._llm.collective_rpc("reload_weights", kwargs={"weights_path": base})
        elif base != self.base or _rank(adapter) > self._most_rank:
            return False
        self.base, self.adapter = base, adapter
        self._adapters += 1
        self.forget()
        return True

    def sample(self, request: SampleRequest) -> list[list[Sample] | Failure]:
        limits, grammar = request.limits(self.context), request.form and request.form.lark
        if not request.count:
            return [[] for _ in request.prompts]
        settings = [
            SamplingParams(
                n=request.count,
                temperature=request.temperature,
                seed=seed,
                max_tokens=limit,
                stop_token_ids=[request.stop_id, *request.other_stops],
                ignore_eos=True,  # the tokenizer's end of sequence need not be a stop token
                logprobs=0,
                detokenize=False,
                structured_outputs=StructuredOutputsParams(grammar=grammar) if grammar else None,
            )
            for seed, limit in zip(request.seeds, limits, strict=True)
        ]
        answers = zip(self._generate(request.prompts, settings), limits, strict=True)
        return request.paused([self._samples(answer, limit) for answer, limit in answers])

    def score(
        self, prompts: Sequence[Ids], candidates: Sequence[Sequence[Ids]], temperature: float = 1.0
    ) -> list[list[Sample] | Failure]:

        def ask(asked: list[Asked]) -> list[list[float] | Failure]:
            own = {"max_tokens": 1, "temperature": temperature or 1.0, "detokenize": False}
            settings = [SamplingParams(logprob_token_ids=tokens, **own) for _, tokens in asked]
            answers = zip(self._generate([prompt for prompt, _ in asked], settings), asked, strict=True)
            return [
                [answer.outputs[0].logprobs[0][token].logprob for token in tokens] for answer, (_, tokens) in answers
            ]

        return score_each_prefix(prompts, candidates, ask)

    def forget(self) -> None:
        """As for ``Generator``. Also frees the GPUs: the CPU's memory keeps the weights until the next call."""
        if not self._asleep:
            self._llm.reset_prefix_cache()
            self._asleep = current_platform.is_sleep_mode_available()
            if self._asleep:
                self._llm.sleep(level=1)

    def close(self) -> None:
        self._llm.llm_engine.engine_core.shutdown()

    def _wake(self) -> None:
        if self._asleep:
            self._llm.wake_up()
            self._asleep = False

    def _samples(self, answer: RequestOutput, limit: int) -> list[Sample] | Failure:
        self.usage.generated_tokens += sum(len(each.token_ids) for each in answer.outputs)
        samples = list[Sample]()
        for each in answer.outputs:
            logprobs = [step[token].logprob for step, token in zip(each.logprobs, each.token_ids, strict=True)]
            try:
                samples.append(checked_sample(each.token_ids, logprobs, limit, self._vocabulary))
            except ValueError as error:  # a kernel that overflows gives no numbers
                return Failure(f"the vLLM engine's answer cannot be used ({error})")
        return samples

    def _generate(self, prompts: Sequence[tuple[int, ...]], settings: Sequence[SamplingParams]) -> list[RequestOutput]:
        self._wake()
        adapter = self.adapter and LoRARequest(self.adapter.name, self._adapters, str(self.adapter))
        answers: list[RequestOutput] = self._llm.generate(
            [{"prompt_token_ids": list(prompt)} for prompt in prompts],
            list(settings),
            use_tqdm=False,
            lora_request=adapter,
        )
        for answer, prompt in zip(answers, prompts, strict=True):
            cached = answer.num_cached_tokens or 0
            self.usage.cached_tokens += cached
            self.usage.encoded_tokens += len(prompt) - cached
        return answers


def _rank(adapter: Path) -> int:
    return int(json.loads((adapter / "adapter_config.json").read_text())["r"])


_running: VllmGenerator | None = None
"""This process's engine. It takes nearly all of the GPUs' memory, so a process has only one."""
_user = ""
"""The user of the engine: "policy" or "world"; empty before the first call."""


def engine(
    user: Literal["policy", "world"],
    base: str,
    adapter: Path | None,
    config: VllmConfig,
    dtype: DType,
    *,
    structured: bool = False,
) -> VllmGenerator:
    """This process's engine, switched to a checkpoint, or a new one if it cannot switch."""
    global _running, _user
    if _running is not None and user != _user:
        raise UserError(
            f"this process's vLLM engine runs the {_user}'s model, so the {user}'s cannot: serve one of them (vllm "
            "serve) and set its generator to remote, or set it to local"
        )
    _user = user
    if _running is None or _running.structured < structured or not _running.load(base, adapter):
        if _running is not None:
            _running.close()
            _running = None
            gc.collect()
        _running = VllmGenerator(base, adapter, config, dtype, structured=structured)
    return _running
