"""The README.md of a dataset: a header that tells the datasets library the files and columns, and the provenance."""

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.metadata import version

import orjson
import tomli_w
from datasets import DatasetInfo, Features
from datasets.info import DatasetInfosDict
from huggingface_hub import DatasetCardData

from treeagent.config import RunConfig, dump_config
from treeagent.pipeline.export.views import VIEWS
from treeagent.pipeline.folder import COLLECTED, Run
from treeagent.visible import visible


def card(
    config: RunConfig, run: Run, rows: Mapping[str, Counter[str]], counts: Counter[str], format: str, digest: str
) -> str:
    """The content of README.md.

    Args:
        rows: number of rows by view, then by split.
        counts: number of trees, the costs of their searches, and the number of steps by origin.
        digest: hash that identifies the trees and the settings.
    """
    options = orjson.dumps(config.environment.options).decode()
    facts = {
        "run": _code(run.path.resolve().name),
        "seed": config.seed,
        "environment": f"{_code(config.environment.name)}, options {_code(options)}",
        "policy": f"{_checkpoints(run)}, sampled at temperature {config.policy.temperature}",
        "search": f"`{config.search.method}`, settings below",
        "search trees": f"{counts['trees']:,}",
        "simulations": f"{counts['simulations']:,}",
        "environment steps": f"{counts['environment_steps']:,}",
        "generated tokens": f"{counts['generated_tokens']:,}",
        "steps in the trees": f"{counts['real']:,} real, {counts['imagined']:,} imagined",
        "made by": f"treeagent {version('treeagent')}",
    }
    lines = [f"| {view} | {split} | {count:,} |" for view, splits in rows.items() for split, count in splits.items()]
    return _CARD.format(
        header=_header(rows, format, digest),
        name=facts["run"],
        counts="\n".join(lines),
        facts="\n".join(f"| {name} | {fact} |" for name, fact in facts.items()),
        settings=_settings(config, rows),
        told=_TOLD.format(format=config.policy.format) if config.policy.is_told or config.policy.shots else "",
    )


def _header(rows: Mapping[str, Iterable[str]], format: str, digest: str) -> str:
    """The header in YAML. It declares the columns; for JSON, the library would infer them from the first rows.

    It also holds the digest. The library caches rows by the folder's last name and this header, so without the digest
    it could return the cached rows of another export.
    """
    header = DatasetCardData(
        pretty_name="Search trees of a language agent",
        tags=["treeagent", "trl", "agent", "tree-search"],
        configs=[
            {
                "config_name": view,
                "description": f"From trees and settings {digest[:16]}",
                "data_files": [{"split": split, "path": f"{view}/{split}-*.{format}"} for split in splits],
            }
            for view, splits in rows.items()
        ],
    )
    features = {view: Features.from_arrow_schema(VIEWS[view].columns) for view in rows}
    DatasetInfosDict({view: DatasetInfo(features=features[view]) for view in rows}).to_dataset_card_data(header)
    return str(header)


def _settings(config: RunConfig, views: Iterable[str]) -> str:
    """The settings of the search and of the exported views, as TOML."""
    settings = tomllib.loads(dump_config(config))
    sections = {VIEWS[view].section for view in views} - {""}
    update = {section: settings["update"][section] for section in sorted(sections)}
    return tomli_w.dumps({"search": settings["search"]} | ({"update": update} if update else {})).strip()


def _checkpoints(run: Run) -> str:
    """The policies of the finished searches: hub names, or names of folders without their paths, which are private."""
    paths = [run.recorded_checkpoint(stage) for stage in run.stages() if stage.split("-")[0] == COLLECTED]
    names = [path.name if path.is_absolute() or path.is_relative_to(run.path) else str(path) for path in paths if path]
    return ", ".join(map(_code, dict.fromkeys(names))) or "not recorded"


def _code(text: str) -> str:
    """Any text as Markdown code that is safe in a table cell."""
    ticks = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if len(ticks) > 1 else ""
    return f"{ticks}{space}{visible(text)}{space}{ticks}".replace("|", r"\|")


_TOLD = """
The policy was told its format (`{format}`) and the environment's tools, or shown demonstrations, at the beginning of
every prompt. The ids hold that, the messages do not: give a `tools` column to what trains on messages, as
docs/export.md shows.
"""
_CARD = """\
---
{header}
---

# Search trees of the run {name}, as training data

| config | split | rows |
|---|---|---|
{counts}

`sft` trains by TRL as it is, its ids never tokenised again, with the tokenizer of the policy:

```python
from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

rows = load_dataset("THIS_FOLDER", "sft", split="train")
SFTTrainer("MODEL", args=SFTConfig(max_length=None), train_dataset=rows).train()
```

`pairs` train by DPOTrainer on `prompt`, `chosen` and `rejected`, or on their ids with the stored reference
log-probabilities as docs/export.md of treeagent shows.
{told}
## Where the rows come from

| | |
|---|---|
{facts}

```toml
{settings}
```
"""
