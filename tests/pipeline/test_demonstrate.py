"""Demonstrations as trees, with the tokens that a policy would have read and sampled in them."""

from toy_llama import tokenizer

from treeagent.envs import EnvDynamics
from treeagent.envs.shop import ShopEnv, ShopOptions
from treeagent.generators.chat import ChatFormat
from treeagent.generators.turn import ReAct
from treeagent.pipeline.demonstrate import demonstrate, tokenise
from treeagent.search.node import Tree
from treeagent.views.imitation import ImitationConfig, imitation_rows

CHAT = ChatFormat(tokenizer())
SHOP = ShopEnv(ShopOptions(products=200))
TASKS = SHOP.tasks("train", 4)


def demonstrations(noise: float = 0.0, max_steps: int = 15, seed: int = 0) -> list[Tree]:
    player = SHOP.demonstrator(noise)
    assert player is not None
    return list(demonstrate(EnvDynamics(SHOP, max_steps=max_steps), player, TASKS, seed=seed, grammar=ReAct()))


def texts(tree: Tree) -> list[str]:
    return [edge.action.text for node in tree.nodes() for edge in node.edges]


def test_tokens_are_those_of_the_conversation() -> None:
    for tree in demonstrations():
        before = [node.state for node in tree.nodes()]
        tokenised = tokenise(tree, CHAT)
        for path, node in tokenised.walk():
            assert tokenised.prompt_ids(path) == CHAT.prompt_ids(node.state.messages)
            for edge in node.edges:
                assert CHAT.decode(edge.action.token_ids) == edge.action.text
                assert edge.action.token_ids[-1] == CHAT.stop_id
        assert texts(tokenised) == texts(tree)
        contents = [[message.content for message in node.state.messages] for node in tokenised.nodes()]
        assert contents == [[message.content for message in state.messages] for state in before]
        assert all(not edge.action.token_ids for node in tree.nodes() for edge in node.edges)
        assert [node.state for node in tree.nodes()] == before
        [row] = imitation_rows(tokenised, ImitationConfig())
        said = [token for token, kept in zip(row.token_ids, row.mask, strict=True) if kept]
        assert said == [token for text in texts(tree) for token in CHAT.encode_action(text)]
