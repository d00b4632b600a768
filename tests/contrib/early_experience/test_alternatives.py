"""Alternatives: other actions at the states of a demonstration, each played to its end."""

from toy_llama import tokenizer

from treeagent.contrib.early_experience.alternatives import Alternatives, demonstrate_branched
from treeagent.envs import EnvDynamics
from treeagent.envs.shop import ShopEnv, ShopOptions
from treeagent.generators.chat import ChatFormat
from treeagent.generators.turn import ReAct
from treeagent.pipeline.demonstrate import demonstrate, demonstration_path, tokenise
from treeagent.search.node import Tree, path_return

CHAT = ChatFormat(tokenizer())
SHOP = ShopEnv(ShopOptions(products=200))
TASKS = SHOP.tasks("train", 4)


def demonstrations(noise: float = 0.0, max_steps: int = 15, seed: int = 0) -> list[Tree]:
    player = SHOP.demonstrator(noise)
    assert player is not None
    return list(demonstrate(EnvDynamics(SHOP, max_steps=max_steps), player, TASKS, seed=seed, grammar=ReAct()))


def texts(tree: Tree) -> list[str]:
    return [edge.action.text for node in tree.nodes() for edge in node.edges]


def branched(noise: float = 0.5, count: int = 2, max_steps: int = 15) -> list[Tree]:
    player, expert, erring = (SHOP.demonstrator(each) for each in (noise, 0.0, 1.0))
    assert player is not None and expert is not None and erring is not None
    return list(
        demonstrate_branched(
            EnvDynamics(SHOP, max_steps=max_steps),
            player,
            TASKS,
            Alternatives(expert, erring, count),
            seed=0,
            grammar=ReAct(),
        )
    )


def test_alternatives_stand_beside_a_demonstration_that_they_do_not_change() -> None:
    for alone, tree in zip(demonstrations(0.5), branched(), strict=True):
        path = demonstration_path(tree)
        assert [edge.action for edge in path] == [edge.action for edge in demonstration_path(alone)]
        assert path[-1].child is not None and path[-1].child.state == list(alone.nodes())[-1].state
        for node in (tree.root, *(edge.child for edge in path[:-1])):
            assert node is not None
            calls = [edge.action.call for edge in node.edges]
            assert 1 <= len(calls) <= 4 and len(set(calls)) == len(calls)
            assert sum(edge.prior for edge in node.edges) == 1
        assert any(len(node.edges) > 1 for node in tree.nodes())


def test_every_alternative_is_played_to_its_end_and_paid_for() -> None:
    for tree in branched():
        ends = [path for path, node in tree.walk() if not node.edges]
        assert all(path[-1].child is not None and path[-1].child.ended for path in ends)
        assert tree.budget.simulations == len(ends) > 1
        assert tree.budget.environment_steps == sum(len(node.edges) for node in tree.nodes())
        for node in tree.nodes():
            for edge in node.edges:
                through = [path_return(path) for path in ends if edge in path]
                assert (edge.visits, edge.value_sum) == (len(through), sum(through))


def test_the_way_back_of_an_environment_that_is_replayed_is_paid_for() -> None:
    class Replayed(ShopEnv):
        snapshot_kind = "replay"

    env = Replayed(ShopOptions(products=200))
    player, expert, erring = (env.demonstrator(each) for each in (0.5, 0.0, 1.0))
    assert player is not None and expert is not None and erring is not None
    dynamics = EnvDynamics(env, max_steps=15)
    trees = list(
        demonstrate_branched(dynamics, player, TASKS, Alternatives(expert, erring, 2), seed=0, grammar=ReAct())
    )
    for tree, exact in zip(trees, branched(), strict=True):
        assert texts(tree) == texts(exact)
    paid = sum(tree.budget.environment_steps for tree in trees)
    assert paid == dynamics.replayed_steps + sum(tree.budget.environment_steps for tree in branched())


def test_alternatives_have_the_tokens_of_their_own_conversations() -> None:
    for tree in branched():
        tokenised = tokenise(tree, CHAT)
        assert texts(tokenised) == texts(tree)
        for path, node in tokenised.walk():
            assert tokenised.prompt_ids(path) == CHAT.prompt_ids(node.state.messages)
        paths = [[edge.action.text for edge in demonstration_path(each)] for each in (tokenised, tree)]
        assert paths[0] == paths[1]


def test_alternatives_to_what_cannot_be_read_are_left_out() -> None:
    for tree in branched():
        whole = tokenise(tree, CHAT)
        for most in range(len(whole.root.context_ids) - 1, len(whole.prompt_ids(demonstration_path(whole))) + 1, 7):
            cut = tokenise(tree, ChatFormat(tokenizer(), context_tokens=most))
            kept = [edge.action.text for edge in demonstration_path(cut)]
            assert kept == [edge.action.text for edge in demonstration_path(tree)][: len(kept)]
