from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.settings import settings_markdown
from treeagent.config import CollectConfig, EnvironmentConfig, EvaluateConfig, RunConfig, dump_config, load_config
from treeagent.learners.config import DPOConfig, GRPOConfig, SFTConfig
from treeagent.search.config import Limits, SearchConfig
from treeagent.types import UserError


def sentence(path: Path | None, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        load_config(path, overrides)
    text = str(caught.value)
    assert "\n" not in text and "pydantic" not in text
    return text


def test_overrides_win_over_the_file_and_the_seed_over_both(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("seed = 1\n[search]\nlimits = { simulations = 8 }\ncandidates = 2\n")
    config = load_config(path, ["search.limits.simulations=32", "seed=2", "environment.name=maze"], seed=3)
    assert (config.seed, config.search.limits.simulations, config.search.candidates) == (3, 32, 2)
    assert config.environment.name == "maze"


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("search.limits.simulations=0", "search.limits.simulations", "0"),
        ("search.granularity=magic", "search.granularity", '"magic"'),
        ("environment.options.x=[[1]]", "environment.options.x", "[[1]]"),
    ],
)
def test_a_setting_that_does_not_fit_is_named_with_its_value(override: str, key: str, value: str) -> None:
    assert sentence(None, override).startswith(f"{key} is {value}: ")


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("search.candidate", "search.candidates"),
        ("simulations", "search.limits.simulations"),
        ("policy.lora.rnk", "policy.lora.rank"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_ones(key: str, near: str) -> None:
    said = sentence(None, f"{key}=3")
    assert said.startswith(f"{key} is no setting: did you mean ") and near in said


@pytest.mark.parametrize("key", ["search.method", "update.advantages.kind"])
def test_a_name_that_no_seam_knows_is_refused_before_anything_runs(key: str) -> None:
    said = sentence(None, f"{key}=grpoo")
    assert said.startswith(f"{key}: 'grpoo' ") and '"module:Name"' in said


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    missing, broken, binary = (tmp_path / name for name in ("missing.toml", "broken.toml", "binary.toml"))
    broken.write_text("seed = 1\n[search]\nsimulations = =\n")
    binary.write_bytes(b"\xff\xfe\x00")
    for path, reason in (
        (missing, "No such file"),
        (broken, "line 3"),
        (binary, "utf-8"),
        (tmp_path, "no regular file"),
    ):
        said = sentence(path)
        assert said.startswith(f"config file {path} cannot be read: ") and reason in said


names = st.text(st.characters(categories=("L", "N")), min_size=1)
scalars = (
    st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text() | st.booleans()
)
options = st.dictionaries(
    names,
    scalars
    | st.lists(scalars).map(tuple)
    | st.dictionaries(names, st.text() | st.lists(st.text()).map(tuple), min_size=1),
)
configs = st.builds(
    RunConfig,
    seed=st.integers(0, 2**32 - 1),
    environment=st.builds(EnvironmentConfig, name=st.text(), options=options),
    search=st.builds(SearchConfig, discount=st.floats(0.1, 1), method=st.sampled_from(["mcts", "gumbel"])),
    collect=st.builds(CollectConfig, tasks=st.integers(1, 10**6)),
    evaluate=st.builds(EvaluateConfig, modes=st.permutations(["greedy", "mcts"]).map(tuple)),
)


@given(config=configs)
def test_a_dumped_config_loads_as_the_same_config(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("config") / "config.toml"
    path.write_bytes(dump_config(config).encode())
    assert load_config(path) == config
    assert dump_config(load_config(path)) == dump_config(config)


def test_a_training_is_composed_of_the_shared_table_and_its_own() -> None:
    config = load_config(
        None,
        [
            *("seed=7", "training.schedule=cosine", "training.precision=bfloat16", "training.epochs=2"),
            *("warm_start.training.optimiser=muon", "warm_start.training.warmup_steps=5", "update.dpo.beta=0.2"),
            "update.grpo.max_steps=9",
        ],
    )
    warm = config.learner(SFTConfig, config.warm_start.training)
    assert (warm.seed, warm.schedule, warm.precision, warm.epochs) == (7, "cosine", "bfloat16", 2.0)
    assert (warm.optimiser, warm.warmup_steps, warm.weight_decay, warm.max_steps) == ("muon", 5, 0.01, None)
    dpo = config.learner(DPOConfig, config.update.dpo)
    assert (dpo.beta, dpo.optimiser, dpo.warmup_steps, dpo.weight_decay, dpo.seed) == (0.2, "adamw", 0, 0.0, 7)
    assert config.learner(GRPOConfig, config.update.grpo).max_steps == 9


def test_a_file_extends_another_key_by_key(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "base.toml").write_text("seed = 3\n[search]\ncandidates = 6\nlimits = { simulations = 8 }\n")
    child = tmp_path / "recipes" / "child.toml"
    child.write_text('extends = "../base.toml"\n[search]\nlimits = { generated_tokens = 90 }\ndiscount = 0.5\n')
    config = load_config(child)
    assert (config.seed, config.search.candidates, config.search.discount) == (3, 6, 0.5)
    assert config.search.limits == Limits(simulations=8, generated_tokens=90)


RECIPES = sorted((Path(__file__).parent.parent / "configs").rglob("*.toml"))


@pytest.mark.parametrize(
    "path", [path for path in RECIPES if path.parent.name == "baselines"], ids=lambda path: path.stem
)
def test_every_baseline_may_spend_as_much_as_the_tree_search(path: Path) -> None:
    """On each task, on all tasks, and in the evaluation."""
    ours, theirs = load_config(path.parent.parent / "adapt.toml"), load_config(path)
    for name in ("environment_steps", "generated_tokens"):
        assert getattr(theirs.search.limits, name) == getattr(ours.search.limits, name)
    assert (theirs.collect.tasks, theirs.adapt.rounds) == (ours.collect.tasks, ours.adapt.rounds)
    assert (theirs.policy, theirs.warm_start, theirs.evaluate) == (ours.policy, ours.warm_start, ours.evaluate)


def test_the_documented_settings_are_those_of_the_code() -> None:
    """If this fails, put what ``python -m benchmarks.settings`` prints below the page's mark."""
    page = (RECIPES[0].parents[1] / "docs" / "settings.md").read_text()
    assert page.partition("<!-- tables -->\n")[2].strip() == settings_markdown().strip()
